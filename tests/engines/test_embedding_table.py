from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.writing import completed, likelihoods
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tests.models import VOCAB, save_causal_lm
from tide.core.chat import Rendered
from tide.core.errors import CompletionError, EngineError, InputError
from tide.core.results import FinishReason
from tide.core.settings import Sampling
from tide.engines.base import Piece, Request
from tide.engines.local.engine import TransformersEngine

PLAIN = [Sampling(), Sampling()]
IDS = st.integers(0, VOCAB - 1)
OUTSIDE = st.integers(max_value=-1) | st.integers(min_value=VOCAB) | st.floats() | st.text()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> TransformersEngine:
    return TransformersEngine(save_causal_lm(tmp_path_factory.mktemp("lm"), "llama"))


@given(
    st.lists(IDS, max_size=4),
    OUTSIDE,
    st.lists(IDS, max_size=4),
    st.sampled_from(["length", "stop"]),
)
@examples(10, 200)
def test_ids_outside_of_the_vocabulary_never_become_a_text(
    engine: TransformersEngine, before: list[int], bad: int, after: list[int], reason: FinishReason
) -> None:
    rows: list[Sequence[int]] = [[5, 6], [*before, bad, *after]]

    async def write(request: Request) -> AsyncGenerator[Piece, None]:
        yield Piece(tuple(rows[1]), reason)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_write", write)
        with pytest.raises(EngineError, match="is not in its vocabulary of 300"):
            completed(engine, [[5]], PLAIN[0])
    outside = "a token id is outside the model's vocabulary of 300"
    for prompts, completions in ((rows, [[5], [5]]), ([[5], [5]], rows)):
        with pytest.raises(CompletionError, match=outside):
            likelihoods(engine, prompts, completions)
    with pytest.raises(CompletionError, match=outside):
        completed(engine, rows, PLAIN, [0, 0])
    with pytest.raises(EngineError, match="is not in its vocabulary of 300"):
        engine.embed_tokens(rows[1])


@given(st.lists(st.integers(0, 255), min_size=1, max_size=8))
def test_the_backend_decodes_as_the_tokenizer_does(
    engine: TransformersEngine, ids: list[int]
) -> None:
    anchor = engine.tokenizer.decode(engine._anchor_ids)
    whole = engine.tokenizer.decode([*engine._anchor_ids, *ids], clean_up_tokenization_spaces=False)
    assert engine.texts([ids]) == [whole.removeprefix(anchor)]


def test_a_tokenizer_with_its_own_way_to_decode_is_asked(tmp_path: Path) -> None:
    engine = TransformersEngine(save_causal_lm(tmp_path, "llama"))

    class Own(type(engine.tokenizer)):  # type: ignore[misc]
        def _decode(self, *arguments: object, **options: object) -> str:
            return str(super()._decode(*arguments, **options)).replace("o", "0")

    ids = engine.tokenizer.encode("so far", add_special_tokens=False)
    engine.tokenizer.__class__ = Own
    assert engine.texts([ids]) == ["s0 far"]


def test_ids_that_the_tokenizer_does_not_know_are_no_empty_text(tmp_path: Path) -> None:
    """The model has 300 rows, its tokenizer fewer tokens: it decodes the other ids to no text."""
    engine = TransformersEngine(save_causal_lm(tmp_path, "llama", word_marks=True))
    size = len(engine.tokenizer)
    assert size < VOCAB - 1
    known, unknown = engine.tokenizer.encode("town"), [size, VOCAB - 1]
    assert engine.completion(known + unknown, "length", 0, PLAIN[0]).text.strip() == "town"
    assert engine.completion([], "stop", 0, PLAIN[0]).text == ""
    with pytest.raises(EngineError, match="its tokenizer knows none of the ids"):
        engine.completion(unknown, "length", 0, PLAIN[0])


def test_only_prompts_with_a_token_without_an_embedding_are_refused(tmp_path: Path) -> None:
    """A text-only model whose tokenizer has image tokens, like that of Gemma 3."""
    engine = TransformersEngine(save_causal_lm(tmp_path, "llama"))
    engine.tokenizer.add_tokens([f"<{number}>" for number in range(VOCAB)])
    assert len(engine.embed(["The weather"])) == 1
    for prompt in (f"a text <{VOCAB - 1}>", Rendered(f"a chat <{VOCAB - 1}>")):
        for read in (engine.encode, lambda text: engine.tokenize([text])):
            with pytest.raises(InputError, match=f"prompt: holds '<{VOCAB - 1}>', for which"):
                read(prompt)


def test_repetition_penalty_applies_to_the_tokens_behind_embeddings(
    engine: TransformersEngine,
) -> None:
    sampling = Sampling(temperature=0.0, max_new_tokens=12, repetition_penalty=3.0)
    ids = (299, 20, 7, 255, 7)
    embeddings = Request(engine.embed_tokens(ids), sampling)
    requests = [Request(ids, sampling), replace(embeddings, penalized_ids=ids)]
    by_ids, by_embeddings = engine.portal.run(engine.complete, requests)
    assert by_embeddings == by_ids
    with pytest.raises(InputError, match="embeddings also need their `penalized_ids`"):
        engine.portal.run(engine.complete, [embeddings])


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_the_mean_row_norm_is_of_what_the_first_block_receives(kind: str, tmp_path: Path) -> None:
    engine = TransformersEngine(save_causal_lm(tmp_path, kind))
    norms = engine.embed_tokens(range(VOCAB)).norm(dim=-1)
    assert engine.mean_row_norm == pytest.approx(float(norms.mean()), rel=1e-3)
