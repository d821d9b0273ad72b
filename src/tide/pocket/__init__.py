"""The bundled language models and scorers, with which TIDE runs without a download.

The main model, `pocket`, writes offensive text; MODEL_CARD.md in this folder names its training
data. The larger reference model measures the fluency of the main model's texts. The chat model
answers comments at length, just as offensively; its card is chat/MODEL_CARD.md. The three models
are a separate distribution (`models/` of the repository), which a gateway does not need.
"""

from pathlib import Path

_HERE = Path(__file__).resolve().parent

MODEL = _HERE / "model"
REFERENCE = _HERE / "reference"
CHAT = _HERE / "chat"
SCORER = _HERE / "scorer.safetensors"
SENTENCE = _HERE / "sentence.onnx"
EXCHANGE = _HERE / "exchange.onnx"
PROFANITIES = _HERE / "profanities.safetensors"
WORD_LISTS = _HERE / "word_lists.safetensors"
# English words with their frequencies, with which masked words are read.
VOCABULARY = _HERE / "vocabulary.txt.gz"
# Names and words that hold an offensive word by chance, and that `pocket` scored 0.08 or more.
BY_CHANCE = _HERE / "by_chance.txt"
# Words that say what people are: origin, religion, gender, orientation, disability, age.
PEOPLE = _HERE / "people.txt"

# Names of the bundled models, accepted wherever a model is named.
FOLDERS = {"pocket": MODEL, "pocket-reference": REFERENCE, "pocket-chat": CHAT}
