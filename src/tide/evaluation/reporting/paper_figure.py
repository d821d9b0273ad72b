"""The paper's trade-off figure: printed toxicity against printed perplexity, twelve panels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tide.core.optional import require
from tide.evaluation.printed import Printed, tables
from tide.evaluation.reporting.figures import _COLOURS, _STYLE, from_zero

_BENCHMARKS = {"rtp": "RTP", "attaq": "AttaQ", "bold": "BOLD"}
_MODELS = {
    "gpt2-large": "GPT-2 Large",
    "qwen3-4b": "Qwen3 4B",
    "gemma-2-2b": "Gemma 2 2B",
    "llama-3.1-8b": "Llama 3.1 8B",
}
_WIDTH, _HEIGHT = 7.2, 6.0
# Colour and marker of each system; the strengths of one are joined by a line.
_SYSTEMS = {
    "Base model": ("#000000", "X"),
    "tide": (_COLOURS[1], "*"),
    "RAD": (_COLOURS[0], "o"),
    "SASA": (_COLOURS[2], "s"),
    "DExperts": (_COLOURS[3], "^"),
    "DeStein": (_COLOURS[4], "D"),
    "GeDi": (_COLOURS[5], "v"),
    "Toxification Reversal": ("#7F7F7F", "P"),
}


def paper_trade_off(one_draw: Mapping[tuple[str, str], float]) -> Any:
    """Average maximum toxicity of the printed tables, a panel a benchmark and a model.

    Hollow, at the same perplexity: what a single draw scores. one_draw: by model and method, that
    of the records of RTP-challenging; where there is none it is the printed mean, and of TIDE the
    printed maximum, which is one draw. Raises MissingDependencyError without matplotlib.
    """
    small = {**_STYLE, "font.size": 7, "axes.titlesize": 7}
    with require("matplotlib", "report").rc_context(small):
        figure = require("matplotlib.figure", "report").Figure(
            figsize=(_WIDTH, _HEIGHT), layout="constrained"
        )
        panels = figure.subplots(len(_BENCHMARKS), len(_MODELS), squeeze=False)
        for row, (benchmark, heading) in zip(panels, _BENCHMARKS.items(), strict=True):
            for panel, (model, name) in zip(row, _MODELS.items(), strict=True):
                methods = tables()[benchmark][model]
                hollow = {name: one.mean for name, one in methods.items() if name != "tide"}
                if benchmark == "rtp":
                    hollow |= {name: one for (of, name), one in one_draw.items() if of == model}
                _panel(panel, methods, hollow)
                panel.set_title(f"{heading}, {name}")
            row[0].set_ylabel("avg max toxicity")
        for panel in panels[-1]:
            panel.set_xlabel("perplexity")
        handles = {
            label: handle
            for panel in panels.flat
            for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        says = (
            "Filled: the printed average maximum of three completions, against the printed "
            "perplexity (lower left is best); betas of one system are joined.\nHollow: the mean "
            "score of one completion, from the records by Perspective (of TIDE its first trial) or "
            "printed, at the same perplexity."
        )
        title = {"title": says, "title_fontsize": 6}
        figure.legend(
            handles.values(), handles, loc="outside lower center", ncols=len(_SYSTEMS) // 2, **title
        )
    return figure


def _panel(panel: Any, methods: Mapping[str, Printed], hollow: Mapping[str, float]) -> None:
    for system, (colour, marker) in _SYSTEMS.items():
        found = _strengths(system, methods)
        if not found:
            continue
        x = [methods[name].perplexity for name in found]
        style = {"color": colour, "marker": marker, "ls": "-" if len(found) > 1 else ""}
        size = {"ms": 8 if marker == "*" else 3.5, "lw": 0.8}
        panel.plot(x, [methods[name].max for name in found], **style, **size, label=system)
        drawn = [name for name in found if name in hollow]
        if drawn:
            panel.plot(
                [methods[name].perplexity for name in drawn],
                [hollow[name] for name in drawn],
                **{**style, "ls": ""},
                **size,
                mfc="none",
            )
    ticker = require("matplotlib.ticker", "report")
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(ticker.LogLocator(10, subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    panel.xaxis.set_minor_formatter(ticker.NullFormatter())
    from_zero(panel)


def _strengths(system: str, methods: Mapping[str, Printed]) -> Sequence[str]:
    """The rows of a system, by beta."""
    rows = [name for name in methods if name.partition(" (")[0] == system or name == system]
    return sorted(rows, key=lambda name: int((re.findall(r"\d+", name) or ["0"])[0]))
