from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests.command import tide
from tests.evaluation.runs import JUDGE, changed, column, run, search_run, write
from tide import evaluation
from tide.core import optional
from tide.core.errors import InputError
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

    def imported(module: str) -> ModuleType:
        if module.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {module!r}", name="matplotlib")
        return import_module(module)

    monkeypatch.setattr(optional, "import_module", imported)


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_tables_figures_and_metrics(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tide("report", runs) == 0
    out = capsys.readouterr().out
    assert "toy, pocket, 6 prompts, protocol tide" in out
    assert "less toxic than base?" in out
    names = ["toxic-rate", "toxicity-scorer-1", "toxicity-judge-1", "text", "cost"]
    names += ["significance-scorer-1", "significance-judge-1"]
    expected = {f"{name}{suffix}" for name in names for suffix in (".md", ".tex", ".csv")}
    expected |= {"trade-off.png", "summary.json", "report.html"}
    assert {path.name for path in (runs / "report").iterdir()} == expected
    methods = [one["method"] for one in json.loads((runs / "report/summary.json").read_text())]
    assert methods == ["base", "tide", "shuffled"]
    page = (runs / "report/report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 1
    assert "are masked" in page


@pytest.mark.usefixtures("no_matplotlib")
def test_a_report_replaces_an_earlier_one_but_no_other_files(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert tide("report", runs, "--out", out) == 0
    (out / "notes.md").write_text("my own")
    write(run([[0.9, 0.2]] * 6), tmp_path / "alone/base", judges=[])
    assert tide("report", tmp_path / "alone", "--out", out) == 0
    assert "tide" not in (out / "cost.md").read_text().split("\n")[4:]
    assert (out / "notes.md").read_text() == "my own"
    capsys.readouterr()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/cost.md").write_text("my own")
    assert tide("report", runs, "--out", tmp_path / "mine") == 1
    assert "mine: holds other files, but no report" in refused(capsys)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["cost.md"]


@pytest.mark.usefixtures("no_matplotlib")
def test_other_benchmarks_and_models_go_to_tables_of_their_own(runs: Path) -> None:
    for folder, model in (("other", "one/gpt2-large"), ("another", "two/gpt2-large")):
        write(search_run("tide"), runs / folder, model=model)
    assert tide("report", runs) == 0
    assert {path.name for path in (runs / "report").glob("*cost.md")} == {
        "toy-pocket-tide-cost.md",
        "toy-one-gpt2-large-tide-cost.md",
        "toy-two-gpt2-large-tide-cost.md",
    }


@pytest.mark.usefixtures("no_matplotlib")
def test_a_scorer_of_some_runs_may_judge_the_others(runs: Path) -> None:
    one = search_run("guided")
    for number, row in enumerate(one.records):
        scores = {"scorer@1": column(row, "toxicity")}
        steps = {"scorer@1": column(row, "step_judge_scores")[JUDGE]}
        changed(one, number, judge_scores=scores, step_judge_scores=steps)
    scorer, judge = ({"spec": None, "name": name} for name in (JUDGE, "scorer@1"))
    write(one, runs / "guided", scorer=scorer, judges=[judge])
    assert tide("report", runs) == 0
    title = (runs / "report/toxicity-judge-1.md").read_text().splitlines()[0]
    assert "the scorer of guided, a judge of the others" in title


@pytest.mark.usefixtures("no_matplotlib")
def test_two_runs_of_one_method_are_told_apart(runs: Path) -> None:
    write(search_run("tide", seed=5), runs / "again")
    write(search_run("tide", seed=6), runs / "deeper/tide")
    for _ in range(2):  # the second time, the report must not count as a run
        assert tide("report", runs) == 0
    for name in ("cost", "significance-judge-1"):
        table = (runs / f"report/{name}.md").read_text()
        for row in ("tide (tide)", "tide (again)", "tide (deeper/tide)"):
            assert f"| {row} " in table


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--against", "nothing"], "--against: no run of method 'nothing'; there are base, tide"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_written(
    runs: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tide("report", runs, *options) == 1
    assert message in refused(capsys)
    assert not (runs / "report").exists()


@pytest.mark.usefixtures("no_matplotlib")
def test_without_matplotlib_the_tables_are_there(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tide("report", runs) == 0
    shown = capsys.readouterr()
    problem, written = shown.err.strip().splitlines()
    assert problem.startswith("no figures: ")
    assert "pip install -e '.[report]'" in problem
    assert "written to" in written
    assert "toy, pocket, 6 prompts, protocol tide" in shown.out
    assert (runs / "report/toxicity-judge-1.csv").is_file()
    assert (runs / "report/summary.json").is_file()
    assert "pip install" in (runs / "report/report.html").read_text(encoding="utf-8")


def test_a_report_in_python(runs: Path) -> None:
    made = evaluation.report(runs)
    assert set(made.figures) == {"trade-off"}
    assert [summary.method for summary in made.summaries] == ["base", "tide", "shuffled"]
    assert repr(made) == "\n".join(map(to_markdown, made.tables))
    assert not (runs / "report").exists()
    in_memory = evaluation.report([read_run(runs / "tide"), runs / "base"], draw=False, tests=False)
    assert [summary.method for summary in in_memory.summaries] == ["tide", "base"]
    with pytest.raises(InputError, match="no run of method 'x'"):
        evaluation.report(runs, against="x")
