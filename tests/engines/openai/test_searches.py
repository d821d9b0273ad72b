"""What works without embeddings: drafts, drawing again, holding back; the rest says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.openai.server import TextServer
from tide import Detoxifier
from tide.core.chat import Chat
from tide.core.errors import InputError
from tide.engines.openai.engine import OpenAIEngine

PROMPTS = [f"The weather {number} is" for number in range(12)]


@pytest.fixture(scope="module", params=[{}, {"tokens": False}, {"continues": False}], ids=str)
def engine(request: pytest.FixtureRequest) -> Iterator[OpenAIEngine]:
    with TextServer(**request.param) as server, OpenAIEngine("tiny", base_urls=server.url) as one:
        yield one


def dull(texts: list[str]) -> list[float]:
    return [0.9 if "dull" in text.lower() else 0.1 for text in texts]


def detoxifier(engine: OpenAIEngine, strategy: str, **settings: Any) -> Detoxifier:
    settings = {"temperature": 0.7, "preset": "relative", **settings}
    return Detoxifier(engine, scorer=dull, strategy=strategy, **settings)


@pytest.mark.parametrize(("strategy", "length"), [("resample", 20), ("backtrack", 100)])
def test_repairs_by_text_alone(engine: OpenAIEngine, strategy: str, length: int) -> None:
    results = list(detoxifier(engine, strategy, max_new_tokens=length).map(PROMPTS))
    assert sum(result.trials[0].base.toxicity >= 0.5 for result in results) > 2
    found = [result for result in results if result.trials[0].accepted]
    assert not any("dull" in result.text.lower() for result in found)
    assert len(found) >= (12 if strategy == "backtrack" else 6)
    again = list(detoxifier(engine, strategy, max_new_tokens=length).map(PROMPTS[:4]))
    assert again == results[:4]


def test_searches_that_move_the_prompt_say_that_they_cannot(engine: OpenAIEngine) -> None:
    with pytest.raises(
        InputError, match=r"random-walk: moves prompt embeddings.*does not have"
    ) as error:
        detoxifier(engine, "random-walk")("The weather is")
    assert len(str(error.value).splitlines()) == 1
    with pytest.raises(InputError, match="max_perplexity: OpenAIEngine tells no likelihoods"):
        detoxifier(engine, "resample", max_perplexity=12.0)


def test_chats(engine: OpenAIEngine) -> None:
    chats = [Chat.said(f"How are you, {number}?") for number in range(6)]
    results = list(detoxifier(engine, "backtrack", max_new_tokens=100).map(chats))
    goes_on = engine.supports_continuation(engine.encode(engine.text_of(chats[0])).token_ids)
    kept = [one.kept_tokens > 0 for result in results for one in result.trace]
    assert any(kept) == goes_on
    found = [result for result in results if result.trials[0].accepted]
    assert not any("dull" in result.text.lower() for result in found)


@pytest.mark.parametrize("patient", [True, False])
def test_a_broken_off_text_is_no_repair(patient: bool) -> None:
    """Without the blamed word the model would rather end; that is banned for a few words, too."""
    with TextServer(patient=patient) as server, OpenAIEngine("tiny", base_urls=server.url) as one:
        server.favourite = " dull"
        server.ends = lambda text: text.endswith(" is")
        own = server.written
        server.written = lambda text, body: (  # type: ignore[method-assign]
            own(text, body) if "logit_bias" in body else ([" dull"] * body["max_tokens"], "length")
        )
        result = detoxifier(one, "backtrack", temperature=0.0)("The weather is")
        assert result.trials[0].accepted
        assert len(one.tokenize([result.text])[0]) >= 5
