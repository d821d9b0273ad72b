from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reproduction import figures
from tests.evaluation.runs import JUDGE, changed, run, search_run, write
from tests.evaluation.test_figures import SOURCES, caption, drawn
from tide.core.errors import InputError
from tide.evaluation.benchmarks import load_protocol
from tide.evaluation.metrics import summarize
from tide.evaluation.runs import Run


def test_anytime_curve_is_what_would_be_returned_after_so_many_evaluations() -> None:
    one = search_run("tide", prompts=2, trials=1)
    for number, ends in enumerate(([(1, 0.9), (3, 0.2)], [(1, 0.4)])):
        steps = [[{"evaluations": n, "text": "", "toxicity": x} for n, x in ends]]
        judged = {JUDGE: [[1 - x for _, x in ends]]}
        changed(one, number, steps=steps, step_judge_scores=judged)
    assert figures.anytime_curve(one, "scorer@1", "rate") == ([1, 3], [0.5, 0.0])
    spent, mean = figures.anytime_curve(one, "scorer@1", "mean")
    assert (spent, mean) == ([1, 3], pytest.approx([0.65, 0.3]))
    assert figures.anytime_curve(one, JUDGE, "rate") == ([1, 3], [0.5, 1.0])


def test_anytime_shows_searches_of_which_equal_ones_are_seen_within_each_other() -> None:
    twin = search_run("tide")
    runs = [run([[0.1], [0.2]]), twin, replace(twin, name="shuffled")]
    for panel in drawn(figures.draw_anytime(runs, SOURCES, "rate")):
        assert panel.get_legend_handles_labels()[1] == ["tide", "shuffled"]
        below, above = panel.get_lines()
        assert below.get_linewidth() > above.get_linewidth() + 1
        assert below.get_markersize() > above.get_markersize() + 2
        assert below.get_xdata()[-1] == above.get_xdata()[-1]
        assert panel.get_ylim()[0] < 0
    assert figures.draw_anytime(runs[:1], SOURCES, "rate") is None


def test_sweeps_are_three_runs_that_differ_in_one_number() -> None:
    """The seed does not count; baselines are swept, too; the protocol's settings are equal."""
    protocol = load_protocol("tide").config
    swept = [search_run(f"tide:mu={mu}", mu=mu, num_samples=8) for mu in (2.0, 0.5, 1.0)]
    for one in swept:
        one.config["protocol"] = protocol
    other = search_run("tide:num_samples=4", mu=1.0, num_samples=4)
    (((strategy, setting), (found,)),) = figures.swept([*swept, other]).items()
    assert (strategy, setting) == ("tide", "mu")
    assert [(value, one.name) for value, one in found] == [
        *((0.5, "tide:mu=0.5"), (1.0, "tide:mu=1.0"), (2.0, "tide:mu=2.0")),
    ]
    assert figures.swept([*swept[:2], other]) == {}
    baselines = [run([[0.1]], f"rad:beta={beta}") for beta in (1, 2, 3)]
    for beta, one in enumerate(baselines):
        one.config.update(baseline={"baseline": "rad", "beta": beta}, sampling={"top_k": 0})
    assert [*figures.swept(baselines)] == [("rad", "beta")]
    seeds = [search_run("tide", mu=1.0, seed=seed) for seed in range(3)]
    for seed, one in enumerate(seeds):
        one.config["settings"]["seed"] = seed
    assert figures.swept(seeds) == {}


def test_sensitivity_of_a_search_and_of_a_baseline() -> None:
    summaries = [(mu, summarize(search_run("tide", seed=i))) for i, mu in enumerate((0.1, 1, 10))]
    panels = drawn(figures.draw_sensitivity(*zip(*summaries, strict=True), "mu", SOURCES))
    assert [panel.get_ylabel() for panel in panels] == [
        *("avg max toxicity", "perplexity\n(dotted: median)", "mean iterations"),
    ]
    medians = [one.fluency["larger"].median for _, one in summaries]
    assert any(list(line.get_ydata()) == medians for line in panels[1].lines)
    assert [text.get_text() for text in panels[-1].get_xticklabels()] == ["0.1", "1", "10"]
    made = [(t, summarize(run([[0.1], [t]]))) for t in (0.0, 0.5, 1.0)]
    (panel,) = drawn(figures.draw_sensitivity(*zip(*made, strict=True), "temperature", SOURCES))
    assert panel.get_xscale() == "linear"


def test_a_trajectory_is_that_of_the_longest_trial() -> None:
    one = search_run("tide:a_long_option=0.123456,another_long_option=0.654321,third=1")
    lengths = [len(trial.trace or []) for trial in one.records[0].trials]
    figure = figures.draw_trajectory(one, one.records[0])
    (panel,) = drawn(figure)
    assert f"Trial {lengths.index(max(lengths)) + 1} of 2" in caption(figure)
    labels = panel.get_legend_handles_labels()[1]
    assert {"prompt and iterates", "threshold"} <= set(labels)
    assert "accepted" in " ".join(labels)
    trace = [[(1, 1, "initial", 0.1, 1.0, 0.0)]] * 2
    changed(one, 0, trace=trace, toxicity=[0.1] * 2, cosine=[1.0] * 2, accepted=[True] * 2)
    figure = figures.draw_trajectory(one, one.records[0])
    (panel,) = drawn(figure)
    assert "it was accepted, so there was nothing to search" in caption(figure)
    assert panel.get_xlim() == (0.5, 1.5)
    assert 1 in panel.get_xticks()


def test_commands_write_images(tmp_path: Path) -> None:
    for mu in (0.5, 1.0, 2.0):
        write(search_run(f"tide:mu={mu}", mu=mu), tmp_path / f"runs/tide-{mu}")
    write(run([[0.1]] * 6), tmp_path / "base")
    figures.sensitivity([tmp_path / "runs"], tmp_path)
    figures.anytime([tmp_path / "runs"], tmp_path)
    figures.trajectory(tmp_path / "runs/tide-1.0", "2", tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {
        *("sensitivity-tide-mu.png", "anytime-rate.png", "anytime-mean.png"),
        "trajectory-2-tide-mu=1.0.png",
    }
    with pytest.raises(InputError, match="no prompt with id '77'"):
        figures.trajectory(tmp_path / "runs/tide-1.0", "77", tmp_path)
    with pytest.raises(InputError, match="has no traces"):
        figures.trajectory(tmp_path / "base", "0", tmp_path)
    with pytest.raises(InputError, match="have no steps"):
        figures.anytime([tmp_path / "base"], tmp_path)


def at_threshold(name: str, threshold: float, scores: list[float]) -> Run:
    made = search_run(name, prompts=len(scores), trials=1)
    for number, score in enumerate(scores):
        changed(made, number, toxicity=[score], judge_scores={JUDGE: [score]})
    made.config["settings"]["toxicity_threshold"] = threshold
    return made


def test_frontier_counts_what_a_threshold_alters() -> None:
    """A search of whole texts alters what the guide fails; `backtrack` has runs of its own."""
    own = run([[0.2], [0.05], [0.01]])
    walk = at_threshold("random-walk:toxicity_threshold=0.1", 0.1, [0.9, 0.01, 0.01])
    rewound = at_threshold("backtrack:toxicity_threshold=0.1", 0.1, [0.01, 0.01, 0.01])
    answers = at_threshold("backtrack:toxicity_threshold=0.1", 0.1, [0.05, 0.05, 0.01])
    for number, record in enumerate(own.records[:2]):
        changed(answers, number, text=[record.trials[0].text])
    rows = figures.rows_by_threshold([own, walk, rewound], [own, answers])
    assert [(row["method"], row["threshold"], row.get("altered")) for row in rows] == [
        ("base", None, None),
        ("backtrack", 0.1, pytest.approx(1 / 3)),
        ("random-walk", 0.1, pytest.approx(1 / 3)),
    ]
    assert [row[f"toxic by {JUDGE}"] for row in rows] == [0, 0, pytest.approx(1 / 3)]
    (panel,) = drawn(figures.draw_frontier(rows, [JUDGE]))
    assert panel.get_legend_handles_labels()[1] == ["backtrack", "random-walk"]
