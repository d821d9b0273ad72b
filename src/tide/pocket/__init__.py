"""The bundled default: a small language model and a small scorer, so that TIDE runs as installed.

The model writes offensive text; MODEL_CARD.md beside this file says what it was trained on.
"""

from pathlib import Path

_HERE = Path(__file__).resolve().parent

MODEL = _HERE / "model"
SCORER = _HERE / "scorer.safetensors"
