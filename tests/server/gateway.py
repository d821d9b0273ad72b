"""Checks of a gateway with the defaults of `tide serve`."""

from __future__ import annotations

from typing import Any

from tide.core.settings import Settings
from tide.scorers import DEFAULT_SCORER, load_scorer


def assert_repaired(client: Any, prompts: list[str]) -> None:
    """Only text below the threshold is sent, though some of the prompts lead to toxic text."""
    threshold = Settings().toxicity_threshold
    done = [
        client.completions.create(model="safe", prompt=prompt, max_tokens=20, seed=1)
        for prompt in prompts
    ]
    choices = [one.choices[0] for one in done]
    texts = [one.text for one in choices if one.finish_reason != "content_filter"]
    scorer = load_scorer(DEFAULT_SCORER)
    assert max(scorer.score(texts)) < threshold
    assert len(texts) >= 0.9 * len(prompts)
    repaired = [one.tide for one in done if one.tide["rounds"] > 1]
    assert len(repaired) >= 0.2 * len(prompts)
    assert all(one["scorer_calls"] > one["rounds"] for one in repaired)  # to find blamed words
