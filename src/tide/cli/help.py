"""The help of a command: options in groups, nothing cut."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

# Where a group stands; those that are not named stand between.
_FIRST = ("Arguments", "Input", "Model", "Scorer")
_LAST = ("Sampling", "Search", "Long answers", "Output", "Limits", "Options")


class Command(TyperCommand):
    """Shows each option under the `rich_help_panel` that it was given, as plain text."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                is_argument = parameter.param_type_name == "argument"
                panel = "Arguments" if is_argument else None
                panel = panel or getattr(parameter, "rich_help_panel", None) or "Options"
                groups.setdefault(panel, []).append(record)
        for panel in sorted(groups, key=_place):
            with formatter.section(panel):
                formatter.write_dl(groups[panel])

    def get_short_help_str(self, limit: int = 0) -> str:
        """The whole first sentence: in the list of commands it goes on in the next line."""
        return super().get_short_help_str(10_000)


def _place(panel: str) -> int:
    if panel in _FIRST:
        return _FIRST.index(panel) - len(_FIRST)
    return 1 + _LAST.index(panel) if panel in _LAST else 0
