from .tuner import Tuned as Tuned
from .tuner import tune as tune
