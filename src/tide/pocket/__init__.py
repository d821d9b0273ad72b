"""The bundled default: a small language model and a small scorer, so that TIDE runs as installed.

The model writes offensive text; MODEL_CARD.md beside this file says what it was trained on. Its
larger sibling measures the fluency of its texts. The chat model answers comments at length,
as offensively; its card is chat/MODEL_CARD.md. The three models are a distribution of their own
(`models/` of the repository), without which a gateway does.
"""

from pathlib import Path

_HERE = Path(__file__).resolve().parent

MODEL = _HERE / "model"
REFERENCE = _HERE / "reference"
CHAT = _HERE / "chat"
SCORER = _HERE / "scorer.safetensors"
SENTENCE = _HERE / "sentence.safetensors"
PROFANITIES = _HERE / "profanities.safetensors"

# Names that stand for the bundled folders wherever a model is asked for.
FOLDERS = {"pocket": MODEL, "pocket-reference": REFERENCE, "pocket-chat": CHAT}
