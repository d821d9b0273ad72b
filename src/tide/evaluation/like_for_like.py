"""The published completions of TIDE and of the other systems, one draw against one draw.

In the records each trial of TIDE begins with the best completion of those before, so the largest of
its three scores is that of the first; the other rows are independent draws. What can be compared is
the first trial of TIDE and a single draw of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tide.core.errors import InputError
from tide.evaluation.metrics import Summary, summarize
from tide.evaluation.paper import UNPRINTED, Recorded, by_model
from tide.evaluation.printed import tables
from tide.evaluation.reporting.tables import Column, Table, Value, significance_table, slug
from tide.evaluation.runs import Run, first_trial
from tide.evaluation.significance import compare

SEARCH = "tide"
FIRST = "tide, first trial"
# Printed perplexities that count as alike.
_ALIKE = 1.25
# Betas of RAD beside one draw of TIDE where nothing is searched.
_WEAK = (10, 50)
_CAVEAT = (
    "tide: each trial begins with the best of those before, so that any of three is the first; "
    "compare the columns `one` of its first trial"
)


def judged_tables(some: Sequence[Recorded], seed: int = 0) -> Iterator[Table]:
    """By every source: prompts with any toxic completion, single completions, mean scores.

    One table a model, and one of the rows that are about as likely as TIDE's. seed: of the
    bootstrap.
    """
    alike: list[list[Value]] = []
    sources = list(dict.fromkeys(name for one in some for name in one.run.sources))
    for model, runs in by_model(some).items():
        summaries = {one.name: summarize(one.run, seed=seed) for one in runs}
        firsts = [_first(one) for one in runs if one.name == SEARCH]
        summaries |= {run.name: summarize(run, seed=seed) for run in firsts}
        yield _judged_table(model, runs, summaries, sources)
        alike += _alike(model, runs, summaries, sources, *firsts[:1])
    columns = [Column("model"), Column("method"), Column("ppl", 2)]
    for number, source in enumerate(sources):
        after = f" {number}" if number else ""
        columns += [
            Column(f"one{after}", 3, interval=True, key=f"toxic completions by {source}"),
            Column(f"mean{after}", 3, key=f"mean score by {source}"),
            Column(f"p{after}", form="p", key=f"p by {source}"),
        ]
    notes = [
        f"rows whose printed perplexity (ppl) is within a factor of {_ALIKE:g} of TIDE's",
        *_legend(sources, "one: share of completions that are toxic; mean: of their scores"),
        "p: the first trial of TIDE is less toxic than the mean of the draws (Wilcoxon, one-sided)",
    ]
    title = "RTP-challenging: one draw each, at like perplexity"
    yield Table("paper-like-for-like", title, columns, alike, notes)


def _judged_table(
    model: str, runs: Sequence[Recorded], summaries: Mapping[str, Summary], sources: Sequence[str]
) -> Table:
    columns = [Column("method"), Column("ppl", 2, key="printed perplexity")]
    for number, source in enumerate(sources):
        after = f" {number}" if number else ""
        columns += [
            Column(f"any{after}", 3, interval=True, key=f"prompts with any by {source}"),
            Column(f"one{after}", 3, interval=True, key=f"toxic completions by {source}"),
            Column(f"mean{after}", 3, key=f"mean score by {source}"),
        ]
    printed = {one.name: one.printed.perplexity for one in runs if one.printed}
    rows: list[list[Value]] = []
    for name, one in summaries.items():
        cells: list[Value] = [name, printed.get(SEARCH if name == FIRST else name)]
        for source in sources:
            found = one.toxicity[source]
            cells += [found["rate"], found["each"], found["mean"]]
        rows.append(cells)
    says = "any: share of prompts with a toxic one of three; one: of single completions"
    notes = [
        *_legend(sources, says),
        "[ ] 95 %: of prompts Wilson's interval, of completions the bootstrap's over prompts",
    ]
    notes.append("ppl: the printed perplexity")
    notes += [_CAVEAT] if FIRST in summaries else []
    notes += [UNPRINTED] if any(one.row is None for one in runs) else []
    title = f"RTP-challenging, {model}, recorded completions judged again"
    return Table(f"paper-{slug(model)}-judged", title, columns, rows, notes)


def _alike(
    model: str,
    runs: Sequence[Recorded],
    summaries: Mapping[str, Summary],
    sources: Sequence[str],
    first: Run | None = None,
) -> Iterator[list[Value]]:
    """The rows at like perplexity: TIDE's first trial, then the others with their tests."""
    printed = {one.name: one.printed.perplexity for one in runs if one.printed}
    if first is None or SEARCH not in printed:
        return
    ratios = {name: perplexity / printed[SEARCH] for name, perplexity in printed.items()}
    wanted = [one for one in runs if 1 / _ALIKE <= ratios.get(one.name, 0) <= _ALIKE]
    for one in sorted(wanted, key=lambda one: (one.name != SEARCH, printed[one.name])):
        name = FIRST if one.name == SEARCH else one.name
        p_values = {} if one.name == SEARCH else _tests(first, replace(one.run, name=one.name))
        row: list[Value] = [model, name, printed[one.name]]
        for source in sources:
            found = summaries[name].toxicity[source]
            row += [found["each"], found["mean"], p_values.get(source)]
        yield row


def _tests(first: Run, other: Run) -> dict[str, float]:
    """By source: p of "the first trial is less toxic than the mean of the other's draws"."""
    found = compare([first, other], other.name)
    return {one.source: one.p_value for one in found if one.measure == "mean"}


def paper_tests(some: Sequence[Recorded], against: str) -> Iterator[Table]:
    """Paired tests of every recorded run, and of TIDE's first trial, against one; a table a model.

    against: the name of a file (`rad-aisteer-50`), of a printed row, or "tide, first trial". Models
    without it are left out. Raises InputError if no model has it.
    """
    made = False
    for model, runs in by_model(some).items():
        named = [replace(one.run, name=one.name) for one in runs]
        named += [_first(one) for one in runs if one.name == SEARCH]
        names = {one.run.name: one.name for one in runs} | {run.name: run.name for run in named}
        if against not in names:
            continue
        made = True
        comparisons = compare(named, names[against])
        for source in dict.fromkeys(one.source for one in comparisons):
            title = f"RTP-challenging, {model}; less toxic than {names[against]}? by {source}"
            name = f"paper-{slug(model)}-significance-{slug(source)}"
            yield significance_table(comparisons, source, title, name)
    if not made:
        known = ", ".join(dict.fromkeys(one.run.name for one in some))
        raise InputError(f"--against: no recorded run {against!r}; there are {known}")


def clean_table() -> Table:
    """What the printed gain on benchmarks that are clean at once consists of.

    Where K-bar is near 1 nothing was searched, and TIDE's maximum is one draw of the model: it is
    to be compared with the mean of the model's draws, and of RAD's at its weaker strengths, and not
    with the largest of three.
    """
    rows: list[list[Value]] = []
    for benchmark, models in tables().items():
        for model, methods in models.items():
            base, tide = methods["Base model"], methods[SEARCH]
            printed: list[Value] = [base.max, tide.max, tide.max - base.max]
            cells: list[Value] = [benchmark, model, tide.iterations, *printed]
            cells += [base.mean, tide.max - base.mean, base.perplexity, tide.perplexity]
            for beta in _WEAK:
                rad = methods[f"RAD (beta={beta})"]
                cells += [rad.mean, rad.perplexity]
            rows.append(cells)
    columns = [
        *(Column("benchmark"), Column("model"), Column("K-bar", 2)),
        Column("base max", 3),
        Column("tide max", 3),
        Column("diff", 3, form="signed"),
        Column("base mean", 3),
        Column("one draw", 3, form="signed", key="tide max minus base mean"),
        Column("base ppl", 2),
        Column("tide ppl", 2),
    ]
    for beta in _WEAK:
        columns += [Column(f"RAD {beta} mean", 3), Column("ppl", 2, key=f"RAD {beta} ppl")]
    notes = [
        "printed numbers; diff: TIDE's maximum minus the largest of three draws of the model",
        "one draw: TIDE's maximum, which in the records is its first trial, minus a single draw",
        "base mean, RAD mean: of single draws; RAD 10, 50: its beta; ppl: printed perplexity",
    ]
    title = "One draw of TIDE against one draw of the model"
    return Table("paper-one-draw", title, columns, rows, notes)


def _first(one: Recorded) -> Run:
    return replace(first_trial(one.run), name=FIRST)


def _legend(sources: Sequence[str], says: str) -> list[str]:
    each = "; ".join(f"{i}: by {name}" for i, name in enumerate(sources) if i)
    return [f"{says}; by {sources[0]} (searched on)", *([each] if each else [])]
