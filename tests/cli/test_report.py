from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.command import tide
from tests.evaluation.runs import run, search_run, write
from tide import evaluation
from tide.evaluation.runs import read_run
from tide.evaluation.tables import to_markdown


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of three runs over the same six prompts."""
    write(run([[0.9, 0.2]] * 6), tmp_path / "runs/base")
    write(search_run("tide"), tmp_path / "runs/tide")
    write(search_run("shuffled", seed=1, strategy="shuffled"), tmp_path / "runs/shuffled")
    return tmp_path / "runs"


@pytest.fixture
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without the extra, which saves tests of tables the time of figures."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def test_report_writes_tables_figure_page_and_metrics(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tide("report", runs) == 0
    out = capsys.readouterr().out
    assert "toy, pocket, 6 prompts, protocol tide" in out
    assert "less toxic than base?" in out
    names = ["toxicity-scorer-1", "toxicity-judge-1", "text", "cost"]
    names += ["significance-scorer-1", "significance-judge-1"]
    expected = {f"{name}{suffix}" for name in names for suffix in (".md", ".tex", ".csv")}
    expected |= {"trade-off.png", "trade-off.pdf", "report.html"}
    assert {path.name for path in (runs / "report").iterdir()} == expected
    page = (runs / "report/report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 1
    assert "are masked" in page


@pytest.mark.usefixtures("no_matplotlib")
def test_report_without_matplotlib_has_tables_for_each_benchmark_and_model(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, model in (("other", "one/gpt2-large"), ("another", "two/gpt2-large")):
        write(search_run("tide"), runs / folder, model=model)
    assert tide("report", runs) == 0
    assert {path.name for path in (runs / "report").glob("*cost.md")} == {
        "toy-pocket-tide-cost.md",
        "toy-one-gpt2-large-tide-cost.md",
        "toy-two-gpt2-large-tide-cost.md",
    }
    shown = capsys.readouterr()
    problem, written = shown.err.strip().splitlines()
    assert re.match(r"WARNING: no figures: .*pip install -e '\.\[report\]'", problem)
    assert "written to" in written
    assert "toy, pocket, 6 prompts, protocol tide" in shown.out


@pytest.mark.usefixtures("no_matplotlib")
def test_runs_of_one_method_are_named_by_their_paths(runs: Path) -> None:
    write(search_run("tide", seed=5), runs / "again")
    write(search_run("tide", seed=6), runs / "deeper/tide")
    for _ in range(2):  # the second time, the report must not count as a run
        assert tide("report", runs) == 0
    for name in ("cost", "significance-judge-1"):
        table = (runs / f"report/{name}.md").read_text()
        for folder in ("tide", "again", "deeper/tide"):
            assert f"| tide ({runs / folder}) " in table


def test_report_against_an_unknown_method_writes_nothing(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tide("report", runs, "--against", "nothing") == 1
    message = "error: --against: no run of method 'nothing'; there are base, tide"
    assert capsys.readouterr().err.startswith(message)
    assert not (runs / "report").exists()


def test_report_in_python(runs: Path) -> None:
    report = evaluation.report(runs)
    assert set(report.figures) == {"trade-off"}
    assert [summary.method for summary in report.summaries] == ["base", "tide", "shuffled"]
    assert repr(report) == "\n".join(map(to_markdown, report.tables))
    assert not (runs / "report").exists()
    in_memory = evaluation.report([read_run(runs / "tide"), runs / "base"], draw=False, tests=False)
    assert [summary.method for summary in in_memory.summaries] == ["tide", "base"]
    assert in_memory.figures == evaluation.report(runs / "tide").figures == {}
