"""A package that is installed adds one of each kind, and the shell can use them all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import Field

from tests.command import tide
from tests.rows import write_rows
from tests.scripted_engine import ScriptedEngine
from tide import Options
from tide.baselines import REGISTRY as BASELINES
from tide.baselines.decoding import DecodingBaseline
from tide.baselines.fit import FitTask, Fitted
from tide.baselines.lanes import SteeredLane
from tide.engines import REGISTRY as ENGINES
from tide.evaluation import read_run
from tide.plugins import registry as registries
from tide.scorers import REGISTRY as SCORERS
from tide.search import REGISTRY as STRATEGIES

ENTRY_POINTS = """
[tide.engines]
elsewhere-engine = tests.plugins.test_third_party:Scribbler
[tide.scorers]
elsewhere-scorer = tests.scorers.test_load:Tuned
[tide.strategies]
elsewhere-jumps = examples.own_strategy:OneJump
[tide.baselines]
elsewhere-bias = tests.plugins.test_third_party:Bias
"""


class Scribbler(ScriptedEngine):
    """Writes one word, again and again."""

    def __init__(self, model: str, *, word: str = "fine", max_batch: int = 16) -> None:
        super().__init__(lambda x, seed: f"{word} " * 5, max_batch=max_batch)
        self.name = model


class BiasOptions(Options):
    scale: float = Field(default=1.0, ge=0, description="Multiple of the learned bias.")


class Bias(DecodingBaseline):
    """Adds a learned number to the logit of every token: the same words, at the same price."""

    kind = "elsewhere-bias"
    options_class = BiasOptions
    options: BiasOptions

    def lanes(self) -> Any:
        assert self.artefact is not None
        bias = self.options.scale * self.artefact.tensors["bias"]

        class Lane(SteeredLane):
            def shift(self, scores: torch.Tensor) -> torch.Tensor:
                return scores + bias

        return Lane

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        texts, held_out = task.texts()
        return Fitted({"bias": torch.ones(1)}, {"texts": float(len(texts) + len(held_out))})


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    info = tmp_path / "site" / "elsewhere-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    for registry in (ENGINES, SCORERS, STRATEGIES, BASELINES):
        monkeypatch.setitem(vars(registry), "_targets", {})
        del registry._targets  # they are read again
    registries._installed.cache_clear()
    yield
    registries._installed.cache_clear()


@pytest.mark.slow
def test_shell_lists_runs_fits_and_evaluates_what_is_installed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    prompts = [{"id": i, "prompt": f"prompt number {i}"} for i in range(3)]
    write_rows(Path("prompts.jsonl"), prompts)
    labelled = [
        {"text": f"a {kind} text number {i}", "toxicity": toxicity}
        for kind, toxicity in (("rude", 1.0), ("kind", 0.0))
        for i in range(300)
    ]
    write_rows(Path("labelled.jsonl"), labelled)

    assert tide("methods") == 0
    listed = capsys.readouterr().out
    for kind in ("engine", "scorer", "jumps", "bias"):
        assert f"elsewhere-{kind}" in listed

    options = ("--engine", "elsewhere-engine", "--engine-option", "word=splendid")
    used = ("--scorer", "elsewhere-scorer:level=0.6", "--strategy", "elsewhere-jumps:count=3")
    assert tide("run", "-i", "prompts.jsonl", "-o", "out.jsonl", *options, *used) == 0
    trials = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert {trial["text"] for trial in trials} == {"splendid " * 5}
    assert {trial["toxicity"] for trial in trials} == {0.6}
    assert {trial["evaluations"] for trial in trials} == {1 + 3}

    assert tide("fit", "elsewhere-bias", "--data", "labelled.jsonl", "--out", "fitted") == 0
    methods = ("--methods", "base,elsewhere-jumps,elsewhere-bias:scale=3", "--trials", "1")
    judged = ("--judges", "elsewhere-scorer:level=0.75", "--reference", "none")
    folders = ("--out", "runs", "--artefacts", "fitted")
    short = ("--max-new-tokens", "5")
    assert tide("eval", "prompts.jsonl", *methods, *judged, *folders, *short) == 0
    runs = sorted(path.parent for path in Path("runs").glob("*/records.jsonl"))
    base, bias, _ = map(read_run, runs)
    assert [trial.text for _, trial in bias.trials] == [trial.text for _, trial in base.trials]
    assert all("tuned:level=0.75" in trial.judge_scores for _, trial in bias.trials)
