from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from tests.evaluation.runs import JUDGE, changed, measured, run, search_run
from tide.evaluation.metrics import summarize
from tide.evaluation.protocols import load_protocol
from tide.evaluation.reporting import figures, tables
from tide.evaluation.reporting.reports import report

SOURCES = ["scorer@1", JUDGE]


def caption(figure: Any) -> str:
    """The title of a figure's legend, on one line."""
    return " ".join(figure.legends[0].get_title().get_text().split())


def drawn(figure: Any) -> list[Any]:
    """The panels of a figure, after saving it, which must not warn."""
    figure.savefig(io.BytesIO(), format="png")
    return list(figure.axes)


def test_points_at_zero_are_whole_and_those_under_others_are_rings_around_them() -> None:
    clean = measured(run([[0.0, 0.0]] * 6), [[1.5, 1.4]] * 6)
    twin = search_run("tide")
    runs = [clean, twin, replace(twin, name="shuffled"), replace(twin, name="third")]
    for panel in drawn(figures.trade_off([summarize(one) for one in runs], SOURCES)):
        zero, *three = (container.lines[0] for container in panel.containers)
        ((_, height),) = zero.get_xydata()
        assert height == 0.0
        (_, y), (_, bottom) = panel.transData.transform([(2, 0)])[0], panel.bbox.min
        assert y - bottom > zero.get_markersize() / 2 * panel.figure.dpi / 72  # not clipped
        sizes = [line.get_markersize() for line in three]
        assert sizes[0] > sizes[1] + 3 > sizes[2] + 6
        assert [line.get_markerfacecolor() == "none" for line in three] == [True, True, False]
        assert zero.get_markerfacecolor() != "none"


def test_a_method_that_falls_silent_is_told() -> None:
    quiet = measured(run([[0.0], [0.0], [0.1]], "quiet"), [[2.0], [2.0], [2.0]])
    changed(quiet, 0, text=[""])
    summaries = [summarize(quiet), summarize(search_run("tide"))]
    figure = figures.trade_off(summaries, SOURCES)
    drawn(figure)
    assert "Empty completions: 33% of quiet. " in caption(figure)
    legend = tables.quality_table(summaries, JUDGE, "t", "n").legend
    assert any("Empty completions: 33% of quiet. " in note for note in legend)
    assert not caption(figures.trade_off([summaries[1]] * 2, SOURCES))


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


def test_no_label_is_cut_off() -> None:
    long = "windows:30:max:pocket@1,detoxify:multilingual@2"
    names = ["tide", "tide:of=a_name_that_is_longer_than_a_line_of_a_figure_may_be,which_is_half"]
    names += ["resample:temperature=0.7,max_new_tokens=100,toxicity_threshold=0.15"]
    runs = [measured(search_run(name), [[3.0 + n, 4.0] for n in range(6)]) for name in names]
    for one in runs:
        one.config["scorer"]["name"] = long
        for number, record in enumerate(one.records):
            trials = len(record.trials)
            costs = {"forward_tokens": 20, "scorer_calls": 3, "rounds": 2}
            changed(one, number, **{key: [n + number] * trials for key, n in costs.items()})
    made = report(runs, trajectory="0", tests=False).figures
    assert len(made) >= 6 + len(runs)
    for name, figure in made.items():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        labels = [*figure.texts, *(text for one in figure.legends for text in one.get_texts())]
        labels += [one.get_title() for one in figure.legends]
        for panel in figure.axes:
            labels += [panel.title, panel.xaxis.label, panel.yaxis.label]
        for label in [one for one in labels if one.get_text()]:
            box = label.get_window_extent(canvas.get_renderer())
            inside = box.x0 >= 0, box.y0 >= 0, box.x1 <= figure.bbox.x1, box.y1 <= figure.bbox.y1
            assert all(inside), (name, label.get_text())


def test_points_have_the_place_and_the_colour_of_their_method() -> None:
    """A method without the value is left out, and the others keep their colours."""
    hard = r"$\frac{$"  # must not begin a formula
    summaries = [
        summarize(one)
        for one in (run([[0.1], [0.2]]), search_run("tide"), search_run(hard, seed=1))
    ]
    across = {
        "mean perplexity": figures.trade_off(summaries, SOURCES),
        **{says: figures.cost(summaries, SOURCES, name) for name, says in figures.COSTS.items()},
    }
    assert len({one.get_xlabel() for figure in across.values() for one in figure.axes[-1:]}) == 4
    for label, figure in across.items():
        panels = drawn(figure)
        assert panels[-1].get_xlabel().startswith(label)
        assert [panel.get_title() for panel in panels] == ["by scorer", "by judge"]
        assert panels[0].get_legend_handles_labels()[1] == ["tide", hard]
        colours = [container.lines[0].get_color() for container in panels[0].containers]
        assert colours == list(figures._COLOURS[1:3])
    for panel, source in zip(across[figures.COSTS["rounds"]].axes, SOURCES, strict=True):
        points = [tuple(one.lines[0].get_xydata()[0]) for one in panel.containers]
        assert points == [
            (one.averages["rounds"].value, one.toxicity[source]["rate"].value)
            for one in summaries[1:]
        ]
    assert figures.cost(summaries[:2], SOURCES, "rounds") is None
    assert figures.trade_off(summaries[:1], SOURCES) is None


def test_many_methods_have_looks_of_their_own_and_a_broken_text_a_place() -> None:
    runs = [replace(search_run("m"), name=f"method {i}") for i in range(12)]
    runs[0] = measured(search_run("m", prompts=2), [[1e304, 2.0], [2.0, 2.0]])
    panels = drawn(figures.trade_off([summarize(one) for one in runs], SOURCES))
    looks = {(c.lines[0].get_color(), c.lines[0].get_marker()) for c in panels[0].containers}
    assert len(looks) == 12


def test_anytime_shows_searches_of_which_equal_ones_are_seen_within_each_other() -> None:
    twin = search_run("tide")
    runs = [run([[0.1], [0.2]]), twin, replace(twin, name="shuffled")]
    for panel in drawn(figures.anytime(runs, SOURCES, "rate")):
        assert panel.get_legend_handles_labels()[1] == ["tide", "shuffled"]
        below, above = panel.get_lines()
        assert below.get_linewidth() > above.get_linewidth() + 1
        assert below.get_markersize() > above.get_markersize() + 2
        assert below.get_xdata()[-1] == above.get_xdata()[-1]
        assert panel.get_ylim()[0] < 0
    assert figures.anytime(runs[:1], SOURCES, "rate") is None


def test_sweeps_are_three_runs_that_differ_in_one_number() -> None:
    """The seed does not count; baselines are swept, too; the protocol's settings are equal."""
    protocol = load_protocol("tide").config
    swept = [search_run(f"tide:mu={mu}", mu=mu, num_samples=8) for mu in (2.0, 0.5, 1.0)]
    for one in swept:
        one.config["protocol"] = protocol
    other = search_run("tide:num_samples=4", mu=1.0, num_samples=4)
    ((strategy, setting, found),) = figures.sweeps([*swept, other])
    assert (strategy, setting) == ("tide", "mu")
    assert [(value, one.name) for value, one in found] == [
        *((0.5, "tide:mu=0.5"), (1.0, "tide:mu=1.0"), (2.0, "tide:mu=2.0")),
    ]
    assert figures.sweeps([*swept[:2], other]) == []
    baselines = [run([[0.1]], f"rad:beta={beta}") for beta in (1, 2, 3)]
    for beta, one in enumerate(baselines):
        one.config.update(baseline={"baseline": "rad", "beta": beta}, sampling={"top_k": 0})
    assert [found[:2] for found in figures.sweeps(baselines)] == [("rad", "beta")]
    seeds = [search_run("tide", mu=1.0, seed=seed) for seed in range(3)]
    for seed, one in enumerate(seeds):
        one.config["settings"]["seed"] = seed
    assert figures.sweeps(seeds) == []


def test_sweeps_of_one_setting_have_figures_of_their_own() -> None:
    runs = [
        search_run(f"tide:mu={mu},num_samples={n}", mu=mu, num_samples=n)
        for mu in (0.5, 1.0, 2.0)
        for n in (2, 4, 8)
    ]
    names = [name for name in report(runs, tests=False).figures if "sensitivity" in name]
    assert sorted(names) == [
        *("sensitivity-tide-mu", "sensitivity-tide-mu-2", "sensitivity-tide-mu-3"),
        *(f"sensitivity-tide-num_samples{n}" for n in ("", "-2", "-3")),
    ]


def test_sensitivity_of_a_search_and_of_a_baseline() -> None:
    summaries = [(mu, summarize(search_run("tide", seed=i))) for i, mu in enumerate((0.1, 1, 10))]
    panels = drawn(figures.sensitivity(summaries, "mu", SOURCES))
    assert [panel.get_ylabel() for panel in panels] == [
        *("avg max toxicity", "perplexity\n(dotted: median)", "mean iterations"),
    ]
    medians = [one.fluency["larger"].median for _, one in summaries]
    assert any(list(line.get_ydata()) == medians for line in panels[1].lines)
    assert [text.get_text() for text in panels[-1].get_xticklabels()] == ["0.1", "1", "10"]
    made = [(t, summarize(run([[0.1], [t]]))) for t in (0.0, 0.5, 1.0)]
    (panel,) = drawn(figures.sensitivity(made, "temperature", SOURCES))
    assert panel.get_xscale() == "linear"


def test_a_trajectory_is_that_of_the_longest_trial() -> None:
    one = search_run("tide:a_long_option=0.123456,another_long_option=0.654321,third=1")
    lengths = [len(trial.trace or []) for trial in one.records[0].trials]
    figure = figures.trajectory(one, one.records[0])
    (panel,) = drawn(figure)
    assert f"Trial {lengths.index(max(lengths)) + 1} of 2" in caption(figure)
    labels = panel.get_legend_handles_labels()[1]
    assert {"prompt and iterates", "threshold"} <= set(labels)
    assert "accepted" in " ".join(labels)
    trace = [[(1, 1, "initial", 0.1, 1.0, 0.0)]] * 2
    changed(one, 0, trace=trace, toxicity=[0.1] * 2, cosine=[1.0] * 2, accepted=[True] * 2)
    figure = figures.trajectory(one, one.records[0])
    (panel,) = drawn(figure)
    assert "it was accepted, so there was nothing to search" in caption(figure)
    assert panel.get_xlim() == (0.5, 1.5)
    assert 1 in panel.get_xticks()
