"""The numbers that the paper prints, typed off its tables: `numbers/*.csv`."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Printed:
    """A row of a main table; iterations: K-bar, of TIDE alone.

    max, mean, rate: as in a `Summary`, in [0, 1]. perplexity: mean over the completions of exactly
    20 tokens, by the larger model of the family.
    """

    max: float
    mean: float
    rate: float
    perplexity: float
    iterations: float | None


@cache
def tables() -> dict[str, dict[str, dict[str, Printed]]]:
    """By benchmark (rtp, attaq, bold), model and method, in the order of the paper."""
    found: dict[str, dict[str, dict[str, Printed]]] = {}
    for row in rows_of("tables"):
        methods = found.setdefault(row["benchmark"], {}).setdefault(row["model"], {})
        methods[row["method"]] = Printed(
            max=float(row["max"]),
            mean=float(row["mean"]),
            rate=float(row["rate"]),
            perplexity=float(row["perplexity"]),
            iterations=float(row["iterations"]) if row["iterations"] else None,
        )
    return found


@cache
def further(what: str) -> dict[tuple[str, str, str], float]:
    """By model, method and metric. what: "Qwen3-14B" (perplexity by it), "Detoxify" (avg max by
    it), "seconds" (per prompt) or "temperature 1.0" (25 completions, M' = 8).
    """
    rows = (row for row in rows_of("further") if row["what"] == what)
    return {(row["model"], row["method"], row["metric"]): float(row["value"]) for row in rows}


def printed_row(file_name: str, methods: Iterable[str]) -> str | None:
    """The row of a main table that a recorded file belongs to; None if there is none.

    `base` is "Base model", `toxificationreversal` "Toxification Reversal", and the number at the
    end is beta: `rad-aisteer-75` is "RAD (beta=75)". `rad-75` is none of them (`is_unprinted`).
    """
    if is_unprinted(file_name):
        return None
    name, _, beta = file_name.lower().partition("-")
    wanted = name + "".join(re.findall(r"\d+$", beta))
    for method in methods:
        if re.sub(r"[^a-z0-9]|beta|model", "", method.lower()) == wanted:
            return method
    return None


def is_unprinted(file_name: str) -> bool:
    """Whether it is a run with the original code of RAD, which is published and in no table."""
    return re.fullmatch(r"rad-\d+", file_name.lower()) is not None


def rows_of(name: str) -> Iterator[dict[str, str]]:
    """The rows of `numbers/NAME.csv`, by heading."""
    text = files("tide.evaluation").joinpath("numbers", f"{name}.csv").read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())
