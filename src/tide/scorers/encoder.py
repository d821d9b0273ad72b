"""`sentence` and `exchange`: small transformers that read whole sentences.

`pocket`, in contrast, counts words. Both are files of one kind, which `models/encoder_file.py`
writes: an ONNX graph, run by onnxruntime, whose metadata holds the wordpieces and a `Shape`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from tide.core.chat import Chat
from tide.core.concurrency import is_exiting
from tide.core.errors import ScorerError, guarded
from tide.core.sanitize import logger
from tide.pocket import EXCHANGE, SENTENCE
from tide.scorers.base import Exchange, Floats, PlainScorer, Scored, exchange_of
from tide.scorers.disguises import readings
from tide.scorers.languages import is_read
from tide.scorers.pocket import digest_of_bytes, normalize, sigmoid

# Else it keeps an id of this machine in the home folder, and sends it with what it runs to
# Microsoft, by a thread for which a forked process would wait for ever.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime

_LOG = logger(__name__)

SHAPE = "encoder"  # the entry of the metadata with the `Shape`
VOCABULARY = "vocabulary"  # the entry of the metadata with the wordpieces, one per line
_UNKNOWN, _FIRST, _LAST = "[UNK]", "[CLS]", "[SEP]"
# Only so many characters at the end of a context are read: a window holds fewer wordpieces.
_LONGEST_CONTEXT = 1200


class Shape(BaseModel):
    """The sizes of a window, and the map from the network's output to a probability.

    tokens: size of a window, with the tokens that mark the ends of its parts. text: how many of
    them are the text's; a context has the rest. A longer text is scored in windows that overlap by
    half and share the context; the highest score counts. scale, offset: the logit is
    `scale * output + offset`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # Raise the number when the reading of a text changes.
    format: Literal["tide-encoder-1"] = "tide-encoder-1"
    tokens: int
    text: int
    scale: float = 1.0
    offset: float = 0.0


class Reader:
    """Turns exchanges into windows of token ids, with BERT's uncased tokenizer.

    pieces: the wordpieces. pair: windows hold the context, too.
    """

    def __init__(self, pieces: Sequence[str], shape: Shape, pair: bool) -> None:
        numbers = {piece: number for number, piece in enumerate(pieces)}
        self._shape, self._pair = shape, pair
        self._first, self._last = numbers[_FIRST], numbers[_LAST]
        self._tokenizer = Tokenizer(models.WordPiece(numbers, unk_token=_UNKNOWN))
        self._tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        # An answer is scored again and again while it grows.
        self._of_context = lru_cache(maxsize=64)(self._read_context)

    def windows(self, exchange: Exchange) -> Iterator[tuple[list[int], int]]:
        """Yield the ids of each window, and the number of those before the text's.

        [CLS] text [SEP], or [CLS] context [SEP] text [SEP] with the end of the context.
        """
        ids, room = self.ids(exchange.text), self._shape.text
        step = room // 2
        starts = range(0, max(len(ids) - step, 1), step) if len(ids) > room else (0,)
        before = [self._first]
        for start in starts:
            text = [*ids[start : start + room], self._last]
            if self._pair:
                context = self._of_context(exchange.context)
                space = self._shape.tokens - len(text) - 2
                before = [self._first, *context[max(0, len(context) - space) :], self._last]
            yield [*before, *text], len(before)

    def ids(self, text: str) -> list[int]:
        # A lone surrogate is no text for `tokenizers`.
        plain = normalize(text).encode("utf-8", "replace").decode("utf-8")
        ids: list[int] = self._tokenizer.encode(plain, add_special_tokens=False).ids
        return ids

    def _read_context(self, context: str | Chat) -> list[int]:
        """Read a context as a message per line, without system messages.

        A window is short, and system messages say little about one answer.
        """
        if not isinstance(context, str):
            messages = [message for message in context.messages if message.role != "system"]
            context = "\n".join(message.content for message in messages)
        return self.ids(context[-_LONGEST_CONTEXT:])


class EncoderScorer(PlainScorer):
    """Probability that a reader finds an English text toxic, by a transformer of a few layers.

    A disguised text gets the highest score of its readings.

    weights: a file written by `models/encoder_file.py`; the bundled file by default. Raises
    ScorerError if the file is missing or damaged.
    """

    languages = ("en",)
    pace = "8"
    window = 30  # words, which fit in a window of wordpieces
    kind: str
    inputs: tuple[str, ...]
    bundled: Path
    _warned = False

    def __init__(self, weights: str | Path | None = None) -> None:
        weights = Path(weights or self.bundled)
        with guarded(ScorerError, f"{self.kind} scorer: cannot use {weights}"):
            content = weights.read_bytes()
            self._session = _session(content)
            metadata = self._session.get_modelmeta().custom_metadata_map
            self.shape = Shape.model_validate_json(metadata.get(SHAPE, "{}"))
            pieces = metadata.get(VOCABULARY, "").split("\n")
            self.reader = Reader(pieces, self.shape, "types" in self.inputs)
            if not np.isfinite(self.outputs([Exchange("a", "a")])).all():
                raise ValueError("its network computes values that are not finite")
        self.name = f"{self.kind}@{digest_of_bytes(content)}"

    def score(self, texts: Sequence[Scored]) -> Floats:
        exchanges = list(map(exchange_of, texts))
        # A prompt without an answer is read as a text.
        exchanges = [
            exchange if exchange.text else Exchange("", exchange.alone) for exchange in exchanges
        ]
        if not self._warned:
            self._warn_of_other_languages(exchanges)
        logits = self.shape.scale * self.outputs(exchanges) + self.shape.offset
        return np.array([sigmoid(logit) for logit in logits.tolist()])

    def _warn_of_other_languages(self, exchanges: Sequence[Exchange]) -> None:
        """Warn once if a text is mostly in another language: its score means nothing."""
        if all(is_read(self.languages, exchange) for exchange in exchanges):
            return
        self._warned = True
        _LOG.warning(
            "scorer %s: reads only English, and a text is mostly in another language, so its score "
            "means nothing, and word lists find little; use a scorer that knows the language (a "
            "guard such as guard:Qwen/Qwen3Guard-Gen-0.6B)",
            self.kind,
        )

    def outputs(self, exchanges: Sequence[Exchange]) -> Floats:
        """Return, for each exchange, the network's highest output for a window of a reading.

        Each window is run alone, because activations are rounded by the largest of a run, and no
        other text may change them.
        """
        highest = np.zeros(len(exchanges))
        for number, exchange in enumerate(exchanges):
            outputs = []
            for reading in readings(exchange.text):
                for ids, start in self.reader.windows(exchange._replace(text=reading)):
                    if is_exiting():
                        raise ScorerError(f"scorer {self.kind}: Python exits")
                    types = [0] * start + [1] * (len(ids) - start)
                    values = {"ids": np.array([ids]), "types": np.array([types])}
                    inputs = {name: values[name] for name in self.inputs}
                    outputs.append(self._session.run(None, inputs)[0][0])
            highest[number] = np.max(outputs)  # NaN stays NaN
        return highest


class SentenceScorer(EncoderScorer):
    """Probability that an English text is toxic; shares no training text with `pocket` and
    `exchange`.
    """

    kind, inputs, bundled = "sentence", ("ids",), SENTENCE


class ExchangeScorer(EncoderScorer):
    """Reads an answer with what it answers, such as an agreement with a toxic line."""

    kind, inputs, bundled = "exchange", ("ids", "types"), EXCHANGE
    reads = "exchange"


def _session(content: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    # The cores belong to the model that writes.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what fails is raised
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
