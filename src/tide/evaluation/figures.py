"""The figure of a report, legible at half a page and to colour-blind readers.

A matplotlib `Figure` with a panel for each source of scores, below each other. Colours are Okabe
and Ito's; each method has a marker as well. `reproduction/frontier.py` draws in the same style.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tide.core.errors import require
from tide.evaluation.metrics import Estimate, Summary

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
_STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "lines.markersize": 4.5,
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a dollar in a model's name must not begin a formula
}
_WIDTH, _PANEL = 3.5, 2.1  # inches: half a page
LABEL = 46  # characters of a line below or above a panel
_IN_LEGEND, _LINE = 56, 0.16  # characters of a label in a legend; inches of its line
_LARGEST = 1e6  # largest perplexity that is drawn


def trade_off(summaries: Sequence[Summary], sources: Sequence[str]) -> Any | None:
    """Plot toxicity against perplexity with intervals; lower left is best.

    Returns None if fewer than two runs have a perplexity.
    """
    # Methods without a value are numbered, too, so that colours stay with the methods.
    across = {
        number: _capped(summary.perplexity)
        for number, summary in enumerate(summaries)
        if summary.perplexity
    }
    if len(across) < 2:
        return None
    titles = unversioned(sources)
    with panels(len(sources)) as (figure, axes):
        for panel, source in zip(axes, sources, strict=True):
            for number, x in across.items():
                up = summaries[number].toxicity.get(source, {}).get("max")
                if up is None:
                    continue
                look = {**style(number), "ls": "", "label": summaries[number].method}
                panel.errorbar(x.value, up.value, xerr=_bars(x), yerr=_bars(up), **look)
            panel.set_title(wrapped(f"by {titles[source]}", LABEL))
            panel.set_ylabel("avg max toxicity")
            from_zero(panel)
        values = [x.value for x in across.values()]
        if max(values) > 4 * min(values):
            ticker = require("matplotlib.ticker", "report")
            axes[-1].set_xscale("log")
            axes[-1].xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
            axes[-1].xaxis.set_minor_formatter(ticker.NullFormatter())
        axes[-1].set_xlabel("mean perplexity (lower left is best)")
        legend(figure, axes)
    return figure


def _capped(mean: Estimate) -> Estimate:
    """Return a perplexity, capped for the axis: a broken text may have a perplexity of 1e300."""
    low, high = (None if end is None else min(end, _LARGEST) for end in (mean.low, mean.high))
    return Estimate(min(mean.value, _LARGEST), low, high)


def unversioned(sources: Sequence[str]) -> dict[str, str]:
    """Map each source to its name without version, unless two sources differ only in version."""
    short = {source: re.sub(r"@[\w.+-]+", "", source) for source in sources}
    return short if len(set(short.values())) == len(short) else {name: name for name in sources}


def wrapped(name: str, width: int) -> str:
    """Wrap a method's name after commas, and elsewhere only if necessary."""
    lines = textwrap.wrap(name.replace(",", ", "), width, subsequent_indent="  ")
    return "\n".join(lines).replace(", ", ",")


def style(number: int) -> dict[str, str]:
    """Return colour and marker of the method with this number."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
    }


def from_zero(panel: Any) -> None:
    """Let the vertical axis begin at 0, with room for a marker there."""
    top = panel.get_ylim()[1]
    panel.set_ylim(-0.04 * top, top)


@contextmanager
def panels(count: int) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Yield a figure and its `count` panels below each other, in the style of the report."""
    with require("matplotlib", "report").rc_context(_STYLE):
        figure = require("matplotlib.figure", "report").Figure(
            figsize=(_WIDTH, 0.6 + _PANEL * count), layout="constrained"
        )
        yield figure, figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]


def legend(figure: Any, axes: Sequence[Any], says: str = "") -> None:
    """Add a legend for all panels, without duplicates. says: a small caption above the legend."""
    entries: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    labels = [wrapped(label, _IN_LEGEND) for label in entries]
    # A long legend would leave the panels no room.
    lines = sum(label.count("\n") + 1 for label in labels)
    figure.set_figheight(figure.get_figheight() + _LINE * lines)
    title = {"title": says, "title_fontsize": 6}
    figure.legend(entries.values(), labels, loc="outside lower center", **title)


def _bars(estimate: Estimate) -> list[list[float]] | None:
    if estimate.low is None or estimate.high is None:
        return None
    return [[estimate.value - estimate.low], [estimate.high - estimate.value]]
