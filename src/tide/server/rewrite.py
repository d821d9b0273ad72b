"""Repairs a finished text by rewriting each sentence that fails, from the blamed word on.

`Answer` treats the text as if the model were writing it now. Where the text
fails, the loop rewinds it to before the blamed word and bans the word, and the model completes the
sentence. The rest of the text follows unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

from tide.core.errors import CompletionError
from tide.core.settings import Sampling, Settings
from tide.core.text import sentence_end
from tide.engines.base import Engine, FinishReason, Piece, Prompt, Request
from tide.runtime.answer import Answer, TrialTask
from tide.runtime.watch import Failure
from tide.scorers.scoring import Scoring
from tide.search import LoadedStrategy, load_strategy
from tide.search.backtrack import BacktrackOptions

# Maximum length of a text, in characters.
_LONGEST = 20_000
# Maximum tokens of a new sentence end.
_SENTENCE = 64
# Maximum sentences that are rewritten in a text.
_SENTENCES = 8
# The prompt before the text. If the first word of the text fails, the model sees only this prompt.
_BEFORE = "A kind and polite answer:\n"
# Maximum special tokens that a tokenizer puts before a text.
_SPECIAL = 3


async def rewrite(
    text: str,
    settings: Settings,
    strategy: LoadedStrategy,
    priority: int,
    engine: Engine,
    scoring: Scoring,
) -> str | None:
    """Rewrite the failing sentences of a text. Returns None if no repair is found.

    strategy: its options are used if it is `backtrack`; no search follows. Equal texts give equal
    results. Raises CompletionError if tokenization would change the text, and the errors of the
    engine and the scorer.
    """
    own = strategy.options
    options = own if isinstance(own, BacktrackOptions) else BacktrackOptions()
    strategy = load_strategy(options.model_copy(update={"then": "none"}).spec("backtrack"))
    body = text.lstrip()
    spaces, text = text[: len(text) - len(body)], body
    for number in range(_SENTENCES):
        prompt, ids = _read(text, engine)
        task = TrialTask(prompt, settings, strategy, number, priority)
        answer = _Rewritten(task, engine, scoring, ids)
        trial = await answer.run()
        if not trial.accepted or trial.returned.finish_reason == "length":
            return None
        if answer.blamed is None:
            return spaces + text
        end = sentence_end(text, answer.blamed)
        rest = "" if end is None else text[end:]
        if rest.strip() and sentence_end(trial.text, len(trial.text)) is None:
            return None  # the model ended the text within a sentence
        text = trial.text + rest
    return None


def _read(text: str, engine: Engine) -> tuple[Prompt, tuple[int, ...]]:
    """Return the prompt before the text, and the tokens of the text.

    Raises CompletionError if the tokens do not decode to exactly the text, or the text is too long.
    """
    if len(text) > _LONGEST:
        raise CompletionError(f"the text has {len(text)} characters; the limit is {_LONGEST}")
    before, joined, apart = engine.tokenize([_BEFORE, _BEFORE + text, text])
    # Some tokenizers begin each text with a space. Others merge the text's start with `_BEFORE`.
    readings = [(joined[:i], joined[i:]) for i in range(1, len(before) + _SPECIAL)]
    readings += [(before, apart[i:]) for i in range(_SPECIAL)]
    texts = engine.texts([ids for _, ids in readings])
    if text not in texts:
        raise CompletionError(f"model {engine.name}: the tokenizer cannot restore the text")
    first, ids = readings[texts.index(text)]
    engine.check_prompt([*first, *ids], _SENTENCE)
    # The seed of the new text is derived from the old text.
    return Prompt(text, tuple(first), (True,) * len(first)), tuple(ids)


class _Rewritten(Answer):
    """Replays a finished answer up to its first failure. Then the model writes one sentence.

    ids: the tokens of the text. blamed: position where the first blamed word ends, or None.
    """

    def __init__(
        self, task: TrialTask, engine: Engine, scoring: Scoring, ids: Sequence[int]
    ) -> None:
        super().__init__(task, engine, scoring)
        self._given = Piece(tuple(ids), "stop")
        self.blamed: int | None = None

    async def _pieces(self, request: Request) -> AsyncGenerator[Piece, None]:
        if self.blamed is None:
            for piece in parted([self._given], request.piece_tokens):
                yield piece
            return
        async with aclosing(super()._pieces(request)) as pieces:
            async for piece in pieces:
                yield piece

    async def _blamed(self, failure: Failure) -> tuple[int, int]:
        start, end = await super()._blamed(failure)
        if self.blamed is None:
            self.blamed = len("".join(self._watch.texts[:end]))
        return start, end

    def _stopped(self) -> FinishReason | None:
        """Cut the model's text after its first sentence."""
        if self.blamed is None:
            return None
        texts = self._watch.texts
        end = sentence_end(self._watch.text, len("".join(texts[: self._kept])) + 1)
        # Only the next token shows whether a full stop at the end of the text ends the sentence.
        if end is None or end == len(self._watch.text):
            return None
        self._watch.cut(end)
        return "stop"

    def _sampling(self, most: int | None = None) -> Sampling:
        written = len(self._watch.ids) - min(self._places, default=0)
        return super()._sampling(max(1, _SENTENCE - written))


def parted(pieces: Sequence[Piece], size: int | None) -> Iterator[Piece]:
    """Split pieces after every `size` tokens, so that the text is judged as it grows."""
    for piece in pieces:
        ids = piece.token_ids
        starts = range(0, len(ids) or 1, size or len(ids) or 1)
        for start in starts:
            part = ids[start : start + starts.step]
            yield Piece(part, piece.finish_reason if start == starts[-1] else None)
