from __future__ import annotations

import io
from typing import Any

from tests.evaluation.runs import JUDGE, run, search_run
from tide.evaluation import figures
from tide.evaluation.metrics import summarize

SOURCES = ["scorer@1", JUDGE]


def drawn(figure: Any) -> list[Any]:
    """The panels of a figure, after saving it, which must not warn."""
    figure.savefig(io.BytesIO(), format="png")
    return list(figure.axes)


def test_figure_points_have_position_and_colour() -> None:
    """A method without the value is left out, and the others keep their colours."""
    hard = r"$\frac{$"  # must not begin a formula
    runs = [run([[0.1], [0.2]]), search_run("tide"), search_run(hard, seed=1)]
    summaries = [summarize(sample_run) for sample_run in runs]
    panels = drawn(figures.trade_off(summaries, SOURCES))
    assert panels[-1].get_xlabel() == "mean perplexity (lower left is best)"
    assert [panel.get_title() for panel in panels] == ["by scorer", "by judge"]
    for panel, source in zip(panels, SOURCES, strict=True):
        assert panel.get_legend_handles_labels()[1] == ["tide", hard]
        lines = [container.lines[0] for container in panel.containers]
        assert [line.get_color() for line in lines] == list(figures.COLOURS[1:3])
        points = [tuple(line.get_xydata()[0]) for line in lines]
        expected = [
            (summary.perplexity.value, summary.toxicity[source]["max"].value)
            for summary in summaries[1:]
            if summary.perplexity
        ]
        assert points == expected
    assert figures.trade_off(summaries[:2], SOURCES) is None


def test_figure_has_room_for_many_methods() -> None:
    name = "tide:reject_degenerate=true,cosine_threshold=0.5,temperature=0.7"
    summaries = [summarize(search_run(f"{name},seed={seed}")) for seed in range(18)]
    (panel,) = drawn(figures.trade_off(summaries, SOURCES[:1]))
    assert panel.get_window_extent().height > 100
