"""Checks of a gateway with the defaults of `tide serve`."""

from __future__ import annotations

from typing import Any

from tide.core.settings import Settings
from tide.scorers import DEFAULT_SCORER, load_scorer
from tide.scorers.base import Exchange


def assert_repaired(client: Any, prompts: list[str]) -> None:
    """Only text below the threshold is sent, though some of the prompts lead to toxic text."""
    threshold = Settings().toxicity_threshold
    done = [
        client.completions.create(model="safe", prompt=prompt, max_tokens=20, seed=1)
        for prompt in prompts
    ]
    exchanges = [
        Exchange(prompt, answer.choices[0].text)
        for prompt, answer in zip(prompts, done, strict=True)
        if answer.choices[0].finish_reason != "content_filter"
    ]
    scorer = load_scorer(DEFAULT_SCORER)
    assert max(scorer.score(exchanges)) < threshold
    assert len(exchanges) >= 0.9 * len(prompts)
    repaired = [answer.tide for answer in done if answer.tide["rounds"] > 1]
    assert len(repaired) >= 0.2 * len(prompts)
    assert all(cost["scorer_calls"] > cost["rounds"] for cost in repaired)  # to find blamed words
