from .sweeping import sweep as sweep
from .tuning import Tuned as Tuned
from .tuning import tune as tune
