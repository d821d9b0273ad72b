"""Repairs of finished texts: failing sentences are rewritten, and the rest stays as it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.models import save_causal_lm
from tests.server.test_drafts import Rude
from tide.core.errors import CompletionError
from tide.engines.base import Piece, Request
from tide.engines.local.engine import TransformersEngine
from tide.engines.scripted import ScriptedEngine
from tide.scorers.words import ParticularsScorer
from tide.server.policies import ServedDetoxifier
from tide.server.rewrite import _BEFORE, _read

FIRST, LAST = "The weather is fine.", "Bring a coat."


class Script(ScriptedEngine):
    """Continues a text by its ending.

    lines: an ending of the text so far to its continuation; `then` continues other texts. From a
    banned word on, `then` replaces a continuation.
    """

    def __init__(
        self,
        lines: dict[str, str],
        then: str = " kind one. And more",
        context_length: int | None = None,
    ) -> None:
        super().__init__(lambda x, seed: "", context_length=context_length)
        self._lines, self._then = lines, then

    async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        self.requests.append(request)
        assert isinstance(request.prompt, Sequence)
        (so_far,) = self._texts([request.prompt])
        ends = (line for end, line in self._lines.items() if so_far.endswith(end))
        ids: list[int] = []
        for one in self._ids(next(ends, self._then)):
            if one in request.banned_token_ids:
                ids += self._ids(self._then)
                break
            ids.append(one)
        ids = ids[: request.sampling.max_new_tokens]
        for one in ids:
            yield Piece((one,))
        yield Piece((), "length" if len(ids) == request.sampling.max_new_tokens else "stop")


def rewritten(
    text: str, engine: ScriptedEngine, scorer: Any = None, sources: Sequence[str] = (), **more: Any
) -> str | None:
    settings = {"preset": "backtrack", "toxicity_threshold": 0.5, **more}
    with ServedDetoxifier(engine, scorer=scorer or Rude(), **settings) as detox:
        beside = ParticularsScorer([text, *sources])
        found = asyncio.run(detox.rewrite(text, beside))
        assert found == asyncio.run(detox.rewrite(text, beside))
        return found


@pytest.mark.parametrize("pace", ["word", "4", "sentence", "whole"])
def test_only_the_end_of_the_failing_sentence_is_new(pace: str) -> None:
    text = f"{FIRST} You are an idiot and no idiot likes you. {LAST}\n\nAnna, 5 pm"
    engine = Script({" are an": " idiot of a man."})
    found = rewritten(text, engine, strategy=f"backtrack:pace={pace}")
    kept = f"{FIRST} You are an" if pace != "whole" else FIRST
    assert found is not None
    assert found.startswith(kept)
    assert found.endswith(f" kind one. {LAST}\n\nAnna, 5 pm")
    assert engine.requests
    assert all(one.sampling.max_new_tokens <= 64 for one in engine.requests)


def test_a_text_that_passes_is_not_asked_of_the_model() -> None:
    engine = Script({})
    assert rewritten(f" {FIRST} {LAST}", engine) == f" {FIRST} {LAST}"
    assert not engine.requests


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("You idiot", "You kind one."),
        ("idiot", " kind one."),
        ("\n\n You idiot!", "\n\n You kind one."),
        ("- Bread\n- idiot\n- Milk", "- Bread\n- kind one.\n- Milk"),
        ("You idiot. idiot? Go home.", "You kind one. kind one. Go home."),
        ("idiot! " * 7 + "Fine.", " kind one." * 7 + " Fine."),
        (
            "\u4f60\u597d\u3002 idiot\u3002 \u518d\u89c1",
            "\u4f60\u597d\u3002 kind one. \u518d\u89c1",
        ),
    ],
)
def test_where_a_sentence_ends_and_the_text_goes_on(text: str, expected: str) -> None:
    assert rewritten(text, Script({})) == expected


def test_more_failing_sentences_than_are_written_anew() -> None:
    assert rewritten("idiot! " * 9, Script({})) is None


@pytest.mark.parametrize(
    "then",
    [
        " idiot. And more",
        " friend of Maria. And more",
        " friend of 7. And more",
        " good and kind and fine friend of Maria. And more",
        " word" * 100,
        " friend and",  # the model ends within a sentence
    ],
)
def test_what_the_model_may_not_write(then: str) -> None:
    """Another failing word, a new name, a new number, or a sentence without end."""
    text = f"You are an idiot. {LAST}"
    assert rewritten(text, Script({}, then)) is None


def test_a_new_name_is_banned_as_a_failing_word_is() -> None:
    engine = Script({"You": " friend of Maria, idiot."})
    found = rewritten(f"You idiot. {LAST}", engine)
    assert found == f"You friend of kind one. {LAST}"


@pytest.mark.parametrize(
    "change",
    [lambda text: text.replace("weather", "whether"), lambda text: text + " ", lambda _: ""],
)
def test_a_text_that_the_model_does_not_read_as_it_is(change: Callable[[str], str]) -> None:
    class Misreads(Script):
        def _texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
            return list(map(change, super()._texts(rows)))

    with pytest.raises(CompletionError, match="the tokenizer cannot restore the text"):
        rewritten(f"{FIRST} You idiot.", Misreads({}))


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("word_marks", [False, True])
def test_tokenizers_that_join_or_mark_the_beginning_of_a_text(
    bos: bool, word_marks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tide.server.rewrite._SENTENCE", 4)  # the model's context has 64 tokens
    model = save_causal_lm(tmp_path, "llama", bos=bos, word_marks=word_marks)
    with TransformersEngine(model, device="cpu") as engine:
        for text in ("The people", "people are kind.", "T"):
            prompt, ids = _read(text, engine)
            assert engine.texts([ids]) == [text]
            read = engine.texts([prompt.token_ids])[0].removeprefix("<s>").strip()
            assert word_marks or read == _BEFORE.strip()


def test_with_a_model_the_rest_stays_as_it_is() -> None:
    """With a real tokenizer and sampled text; some samples may find no end of the sentence."""
    text = (
        "The weather is fine. You are an idiot and so on.\n\n- Anna, 5 pm: \u00e9\u4f60 \U0001f600"
    )
    start, end = text.index("idiot"), text.index("\n")
    with ServedDetoxifier("pocket", scorer=Rude(), preset="backtrack", temperature=1) as detox:
        beside = ParticularsScorer([text])
        found = [asyncio.run(detox.rewrite(text, beside, seed=seed)) for seed in range(8)]
    new = [one for one in found if one is not None]
    assert new
    for one in new:
        assert one.startswith(text[:start].rstrip())
        assert one.endswith(text[end:])
        assert "idiot" not in one
        assert beside.score([one])[0] == 0.0


def test_a_text_that_is_too_long() -> None:
    with pytest.raises(CompletionError, match="exceed the context of 200"):
        rewritten(f"{FIRST} idiot. " * 40, Script({}, context_length=200))
    with pytest.raises(CompletionError, match="the limit is 20000"):
        rewritten("x" * 20_001, Script({}))
