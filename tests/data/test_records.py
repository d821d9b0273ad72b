from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.data.records import RecordFile, to_record
from tide.detoxifier import Detoxifier
from tide.errors import InputError

CONFIG = {"model": "m", "settings": {"seed": 0, "mu": None}, "versions": {"torch": "1"}}


def record(number: int) -> dict[str, Any]:
    return {"id": number, "prompt": f"prompt {number}", "completions": ["caf\u00e9\u2028text"]}


def test_a_record_is_a_superset_of_the_published_format() -> None:
    detox = Detoxifier(scripted_engine(), scorer=ReadingScorer(), num_trials=2)
    result = detox(PROMPTS[0])
    made = to_record("x", result)
    assert (made["id"], made["prompt"]) == ("x", PROMPTS[0])
    lists = {name: value for name, value in made.items() if isinstance(value, list)}
    assert {len(value) for value in lists.values()} == {2}
    assert {"completions", "toxicity_scores", "num_iter_steps", "accepted", "evaluations",
            "cosine_sims", "base_completions", "base_toxicity_scores"} <= set(lists)  # fmt: skip
    assert made["completions"] == [trial.text for trial in result.trials]
    assert made["base_toxicity_scores"] == [trial.trace[0].toxicity for trial in result.trials]
    assert made["max_toxicity"] == max(made["toxicity_scores"])
    json.dumps(made)


def test_appends_and_resumes(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "out.jsonl"
    with RecordFile(path, CONFIG) as file:
        file.append(record(0))
        assert path.read_text(encoding="utf-8").count("\n") == 1  # there before the run ends
    with RecordFile(path, {**CONFIG, "versions": {"torch": "2"}}) as file:
        assert file.finished({0: "prompt 0", 1: "prompt 1"}) == {0}
        file.append(record(1))
    lines = path.read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == [record(0), record(1)]


def test_a_torn_last_line_is_dropped_and_the_rest_kept(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with RecordFile(path, CONFIG) as file:
        file.append(record(0))
    whole = path.read_bytes()
    unterminated = json.dumps(record(1)).encode()
    for torn in (b'{"id": 1, "pro', b'{"id": 1, "prompt": "caf\xc3', unterminated):
        path.write_bytes(whole + torn)
        with RecordFile(path, CONFIG) as file:
            assert file.records == [{"id": 0, "prompt": "prompt 0"}]  # texts stay on disk
        assert path.read_bytes() == whole


def test_another_configuration_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with RecordFile(path, CONFIG) as file:
        file.append(record(0))
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"settings\.seed = 0, this run has 1; .*--overwrite"):
        RecordFile(path, {**CONFIG, "settings": {"seed": 1, "mu": None}})
    with pytest.raises(InputError, match="model = 'm', this run has 'n'"):
        RecordFile(path, {**CONFIG, "model": "n"})
    with pytest.raises(InputError, match="judge = None, this run has 'j'"):
        RecordFile(path, {**CONFIG, "judge": "j"})
    assert path.read_bytes() == before
    with RecordFile(path, {**CONFIG, "model": "n"}, overwrite=True) as file:
        assert file.records == []


def test_what_is_not_a_record_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("my notes\n")
    with pytest.raises(InputError, match="does not say what made it"):
        RecordFile(path, CONFIG)
    (tmp_path / "out.jsonl.config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(InputError, match="line 1: not a record"):
        RecordFile(path, CONFIG)
    assert path.read_text() == "my notes\n"
    with pytest.raises(InputError, match="cannot be written"):
        RecordFile(tmp_path, CONFIG)


def test_records_of_other_prompts_are_refused(tmp_path: Path) -> None:
    with RecordFile(tmp_path / "out.jsonl", CONFIG) as file:
        file.append(record(0))
        with pytest.raises(InputError, match="record 0 was made from another prompt"):
            file.finished({0: "something else"})
        assert file.finished({5: "prompt 5"}) == {0}  # ids beyond the input are no conflict
