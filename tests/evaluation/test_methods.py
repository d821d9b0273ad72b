from __future__ import annotations

from typing import Any

import pytest

from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide import TideError
from tide.data.prompts import Row
from tide.errors import InputError
from tide.evaluation.methods import Record, load_method
from tide.evaluation.places import Here
from tide.evaluation.protocols import PROTOCOLS, load_protocol
from tide.evaluation.sharing import SharedEngine
from tide.presets import PRESETS

ROWS = [Row(i, prompt) for i, prompt in enumerate(PROMPTS)]


def records(
    spec: str, protocol: str = "tide", engine: SharedEngine | None = None, **common: Any
) -> dict[int | str, Record]:
    engine = engine or SharedEngine(scripted_engine())
    method = load_method(spec, Here(engine, ReadingScorer()), load_protocol(protocol), common)
    found = {}
    for row, record in method.records(ROWS):
        assert not isinstance(record, TideError)
        found[row.id] = record
    assert sorted(found, key=str) == [row.id for row in ROWS]
    return found


def test_base_is_the_first_completion_of_every_search() -> None:
    base, tide = records("base"), records("tide")
    assert any(max(record["toxicity_scores"]) >= 0.5 for record in base.values())
    for number, record in base.items():
        assert record["completions"] == tide[number]["base_completions"]
        assert record["evaluations"] == [1, 1, 1]
        assert "accepted" not in record
        assert "base_completions" not in record


def test_a_record_of_a_search() -> None:
    for record in records("tide").values():
        assert max(record["toxicity_scores"]) < 0.5
        for trial, trace in enumerate(record["traces"]):
            assert len(trace) == record["evaluations"][trial]
            steps = record["steps"][trial]
            assert steps[0]["evaluations"] == 1
            assert steps[0]["toxicity"] == record["base_toxicity_scores"][trial]
            assert steps[-1]["text"] == record["completions"][trial]
            counts = [step["evaluations"] for step in steps]
            assert counts == sorted(set(counts))
            assert counts[-1] <= len(trace)
        assert record["seconds"] > 0


def test_settings_of_one_method_win_over_the_common_ones_and_the_protocol() -> None:
    engine, scorer = SharedEngine(scripted_engine()), ReadingScorer()

    def settings(spec: str, protocol: str, **common: Any) -> dict[str, Any]:
        method = load_method(spec, Here(engine, scorer), PROTOCOLS[protocol], common)
        found: dict[str, Any] = method.config["settings"]
        return found

    assert settings("tide", "tide")["num_trials"] == 3
    assert settings("tide", "tide", num_trials=2)["num_trials"] == 2
    assert settings("tide:seed=4", "tide", seed=3)["seed"] == 4
    assert settings("resample:temperature=1.0", "tide")["temperature"] == 1.0
    assert settings("resample:n=4", "tide")["strategy"] == "resample:n=4"
    assert (
        settings("tide:estimator=rank,num_samples=4", "tide")["strategy"] == "tide:estimator=rank"
    )
    assert settings("tide", "tide-hot")["completions_per_evaluation"] == 8
    assert settings("base", "tide-hot")["completions_per_evaluation"] == 1
    assert settings("base", "rad")["top_k"] == 20
    assert settings("fast", "tide")["strategy"] == PRESETS["fast"]["strategy"]
    growth = settings("fast:growth=2,num_samples=3", "tide")
    assert growth["strategy"] == "ladder:from=0.6,growth=2,samples_growth=1.5"
    assert (growth["num_samples"], growth["mu_relative"]) == (3, 1.3)
    assert settings("random-walk", "dexperts")["strategy"] == "random-walk"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("bas", "methods: unknown 'bas'; known: accept-any, base, "),
        ("tide:mu=-1", "methods: tide:mu=-1: mu: "),
        ("tide:num_trials=1", "num_trials must be the same for all"),
        ("tide:nu=1", "methods: tide:nu=1: strategy tide: no option 'nu'; known: cosine_thr"),
        ("tide:mu", "methods: 'mu' in 'tide:mu' is not key=value"),
    ],
)
def test_bad_specs(spec: str, message: str) -> None:
    engine = SharedEngine(scripted_engine())
    with pytest.raises(InputError, match=message):
        load_method(spec, Here(engine, ReadingScorer()), PROTOCOLS["tide"], {})


def test_overrides_of_a_protocol() -> None:
    protocol = load_protocol("tide", {"num_trials": 5, "temperature": 0.7, "mu": 0.1})
    assert (protocol.num_trials, protocol.sampling["temperature"]) == (5, 0.7)
    assert "mu" not in protocol.sampling
    assert PROTOCOLS["tide"].num_trials == 3


def test_an_unknown_protocol() -> None:
    with pytest.raises(InputError, match="unknown protocol 'tid'; known: tide, tide-hot"):
        load_protocol("tid")


def test_base_completions_are_written_once() -> None:
    inner = scripted_engine()
    written: list[int] = []
    complete = inner.complete

    def counting(embeddings: Any, *rest: Any) -> Any:
        written.append(len(embeddings))
        return complete(embeddings, *rest)

    inner.complete = counting  # type: ignore[method-assign]
    engine = SharedEngine(inner)
    alone = records("tide")
    records("base", engine=engine)
    assert sum(written) == 3 * len(PROMPTS)
    written.clear()
    shared = records("tide", engine=engine)
    evaluations = sum(sum(record["evaluations"]) for record in shared.values())
    assert sum(written) == evaluations - 3 * len(PROMPTS)
    assert engine.seconds_saved > 0
    for number, record in alone.items():
        assert shared[number] == record | {"seconds": shared[number]["seconds"]}
