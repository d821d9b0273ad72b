"""The nearest tokens of accepted points: are they still the prompt?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

from tests.evaluation.runs import changed, column, search_run
from tests.worlds import PROMPTS as MORE
from tests.worlds import ReadingScorer, scripted_engine
from tide.cli.display import completions_table
from tide.core.errors import EngineError
from tide.core.results import Result, Trial
from tide.data.records import to_record
from tide.detoxifier.sync import Detoxifier
from tide.engines.scripted import ScriptedEngine
from tide.evaluation.masking import masked
from tide.evaluation.metrics import summarize
from tide.evaluation.reporting.tables import decoding_table, to_markdown

# In the scripted engine, a word at the start of a prompt and the same word later are two tokens,
# "a" and " a", with the same embedding, so decoding cannot tell them apart.
PROMPTS = [prompt for prompt in MORE if not prompt.startswith("a ")]


def results(engine: ScriptedEngine | None = None, **settings: Any) -> list[Result]:
    given: dict[str, Any] = {"strategy": "random-walk", "toxicity_threshold": 0.3, **settings}
    scorer = ReadingScorer()
    return list(Detoxifier(engine or scripted_engine(dim=64), scorer=scorer, **given).map(PROMPTS))


def moved(found: Sequence[Result]) -> list[tuple[Result, Trial]]:
    return [
        (result, trial)
        for result in found
        for trial in result.trials
        if trial.accepted and trial.returned.displacement > 0
    ]


def test_a_small_shift_leaves_the_prompt_and_a_large_one_does_not() -> None:
    gentle = {"strategy": "random-walk", "step_relative": 0.3, "toxicity_threshold": 0.5}
    near = moved(results(decode=True, **gentle))
    assert near
    assert all(trial.changed_tokens == 0 for _, trial in near)
    assert all(trial.decoded_prompt == result.prompt for result, trial in near)
    far = moved(
        results(decode=True, step_relative=100.0, strategy="random-walk:cosine_threshold=0")
    )
    assert any(trial.changed_tokens for _, trial in far)
    assert any(trial.decoded_prompt != result.prompt for result, trial in far)


def test_what_was_not_moved_or_not_accepted_or_not_asked_for_is_not_decoded() -> None:
    assert not any(trial.changed_tokens for _, trial in moved(results()))
    for result in results(decode=True, toxicity_threshold=0.95):
        assert result.best.chosen == 0
        assert result.best.changed_tokens is None
    for result in results(decode=True, toxicity_threshold=0.001, max_iterations=2):
        assert not result.accepted
        assert result.best.changed_tokens is None


def test_decoding_changes_nothing_else_and_is_of_chosen_points_alone() -> None:
    engine = scripted_engine(dim=64, max_batch=64)
    rows: list[int] = []
    plain = engine.decode_nearest

    def decode(embeddings: Tensor) -> list[int]:
        rows.append(len(embeddings))
        return plain(embeddings)

    engine.decode_nearest = decode  # type: ignore[method-assign]
    found = results(engine, decode=True, num_trials=2)
    assert sum(rows) == sum(len(result.prompt.split()) for result, _ in moved(found))
    assert len(rows) == len(moved(found)) > 0
    none = {"changed_tokens": None, "decoded_prompt": None}
    undone = [
        result.model_copy(
            update={"trials": tuple(one.model_copy(update=none) for one in result.trials)}
        )
        for result in found
    ]
    assert undone == results(num_trials=2)


def test_an_engine_that_cannot_decode_fails_the_search() -> None:
    engine = scripted_engine(dim=64)
    engine._decode_nearest = lambda embeddings: [0]  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="1 nearest ids for"):
        results(engine, decode=True)


def test_records_tables_and_the_terminal_tell_it() -> None:
    found = results(decode=True, step_relative=100.0, strategy="random-walk:cosine_threshold=0")
    records = [to_record(number, result) for number, result in enumerate(found)]
    assert any(one.trials[0].changed_tokens is not None for one in records)
    table = completions_table(records, 0.5, masked)
    shown = "".join(map(str, table.columns[2].cells))
    assert "nearest tokens: " in shown
    assert "changed_tokens" not in to_record(0, results()[0]).to_json()
    run = search_run("tide", prompts=4)
    far = [[0.2, 0.7], [0.7, 0.7], [1.2, 3.0], [0.4, 0.4]]
    differ = [[0, 0], [2, 0], [1, None], [None, None]]
    for number, one in enumerate(run.records):
        update = {"displacement": far[number], "changed_tokens": differ[number]}
        changed(run, number, **update, base_text=column(one, "text"))
    assert "decoded" not in summarize(search_run("tide")).averages
    without = run.records[0].each(lambda _: {"changed_tokens": None})
    run.records.append(without.model_copy(update={"id": 9}))
    summary = summarize(run)
    averages = {name: one.value for name, one in summary.averages.items()}
    assert averages["decoded"] == 5 / 10
    assert averages["recovered"] == 3 / 5
    assert averages["recovered_0_0.5"] == 1
    assert averages["recovered_0.5_1"] == pytest.approx(2 / 3)
    assert averages["recovered_1_1.5"] == 0
    assert "recovered_2_inf" not in averages
    written = to_markdown(decoding_table([summary], "toy", "decoding"))
    assert "| method | decoded | recovered | to 0.5 | to 1 | to 1.5 |" in written
