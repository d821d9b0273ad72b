"""Every baseline at a fairly chosen strength, compared with the searches and the controls.

    tide fit all --data data/toxicity.jsonl.gz \
        --data data/paradetox_pairs.jsonl.gz --out artefacts/pocket
    python benchmarks/baselines.py [--temperature 0.1] [--only A,B]

Each system is tried at several strengths, in every order and variant that it has, on the first 200
prompts of RealToxicityPrompts-challenging, with one completion each. Then one setting is chosen for
each of two bounds: a median perplexity of at most 1.5 or 3 times the model's own. The chosen
setting has the lowest mean score by the first judge. At most a tenth of its completions may be
empty (an empty text is never toxic and has no perplexity), and it must write at least half as many
distinct word pairs as the model (a loop is fluent by any perplexity). The setting is reported on
prompts 201 to 1199, by that judge and an independent judge. For `tide`, `random-walk`, `backtrack`
and `resample`, the strength is the acceptance threshold or the temperature. If no setting is within
a bound, the row is missing. `fudge` reads 20 candidates instead of its authors' 200, which would
take hours.

`mean` and `of 20` are the mean perplexity of all completions and of completions of exactly 20
tokens, `ppl` is the median. `forward` is the number of tokens that went through any model, and `ms`
the time, both per completion. `p` is the p-value of a one-sided Wilcoxon test against `base`,
Holm-corrected over all tests of the table, by the judge with the larger p. Long answers:

    python benchmarks/baselines.py --model pocket-chat --tune-on dialogues-dev:1-200 \
        --report-on dialogues:1-300 --tokens 128 --temperature 0.7 \
        --judges windows:30:profanity-check,windows:30:lexicon --reference pocket-chat

The reference model reads only 256 tokens, too few for long answers, so here the model itself
measures perplexity.

Runs are kept in `benchmarks/results/strengths` and reused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from tide.evaluation import Bars, Run, evaluate
from tide.evaluation.metrics import Summary, summarize
from tide.evaluation.reporting.tables import Column, shown
from tide.evaluation.significance import compare
from tide.plugins.specs import parse_spec

RESULTS = Path(__file__).resolve().parent / "results"
BOUNDS = (1.5, 3.0)
EMPTY, DISTINCT = 0.1, 0.5
# For each curve: the spec with a place for the strength, and the strengths to try.
CURVES: dict[str, tuple[float, ...]] = {
    "tide:toxicity_threshold={}": (0.5, 0.2),
    "backtrack:toxicity_threshold={}": (0.5, 0.3, 0.2, 0.1, 0.07),
    "random-walk:toxicity_threshold={}": (0.5, 0.2),
    "resample:temperature={}": (0.1, 0.5, 0.7, 1),
    "resample:toxicity_threshold=0.2,temperature={}": (0.1, 0.5, 0.7, 1),
    "word-filter:penalty={}": (2, 5, 1000),
    "self-debias:decay={}": (10, 50, 200),
    "self-debias:order=warp-shift,decay={}": (10, 50, 200),
    "reversal:scale={}": (0.5, 1, 2, 3),
    "sasa:beta={}": (5, 10, 15, 20, 30),
    "sasa:normalize=softmax,beta={}": (100, 200, 300, 500),
    "destein:alpha={}": (0.1, 0.2, 0.3, 0.4, 0.6),
    "rad:beta={}": (25, 50, 75, 100, 200),
    "rad:normalize=clamp,beta={}": (5, 10, 20, 40, 80),
    "dexperts:alpha={}": (0.5, 1, 2, 4),
    "dexperts:anti_only=true,alpha={}": (0.25, 0.5, 1, 2),
    "gedi:omega={}": (1, 3, 10, 30, 90),
    "gedi:order=warp-shift,omega={}": (10, 30, 90, 270),
    "dapt:scale={}": (0.25, 0.5, 0.75, 1),
    "contrastive:coefficient={}": (0.25, 0.5, 1, 2),
    "safe-decoding:alpha={}": (1, 3, 6),
    "fudge:candidates=20,weight={}": (1, 2, 4, 8),
    "fudge:candidates=20,order=warp-shift,weight={}": (4, 16),
    "critic-control:weight={}": (0.5, 1, 2, 4),
    "critic-control:order=warp-shift,weight={}": (1, 4, 16),
    "rectification:scale={}": (0.5, 1, 2, 4),
    "quark:scale={}": (0.5, 1, 1.5),
    "unidetox:scale={}": (0.5, 1, 1.5),
    "pplm:stepsize={}": (0.05, 0.1, 0.2),
}


def toxic(found: Summary, judges: list[str], key: str = "mean") -> list[float]:
    return [found.toxicity[judge][key].value for judge in judges]


def perplexity(found: Summary, reference: str) -> float:
    """Return the median perplexity, which a few broken completions do not move."""
    return found.fluency[reference].median or float("inf")


def choose(found: Mapping[str, Summary], judge: str, reference: str) -> dict[str, list[str]]:
    """Choose each system's spec of lowest mean score within a bound; return specs and bounds."""
    own, varied = perplexity(found["base"], reference), found["base"].averages["dist_2"].value
    chosen: dict[str, list[str]] = {}
    for bound in BOUNDS:
        best: dict[str, str] = {}
        for spec, one in found.items():
            system = parse_spec(spec)[0]
            silent = one.averages["empty"].value > EMPTY
            pairs = one.averages.get("dist_2")  # None if no text has two words
            loops = pairs is None or pairs.value < DISTINCT * varied
            if spec == "base" or silent or loops or perplexity(one, reference) > bound * own:
                continue
            other = found.get(best.get(system, ""))
            if other is None or toxic(one, [judge]) < toxic(other, [judge]):
                best[system] = spec
        for spec in best.values():
            chosen.setdefault(spec, []).append(f"{bound:g}")
    return chosen


def show(
    runs: Mapping[str, Run],
    chosen: Mapping[str, list[str]],
    judges: list[str],
    reference: str,
    title: str,
) -> Table:
    found = {spec: summarize(run) for spec, run in runs.items()}
    tests = compare(list(runs.values()), runs["base"].name)
    table = Table(title=title, box=box.SIMPLE, padding=(0, 0))
    table.add_column("")
    of_text = ("mean", "of 20", "ppl", "empty")
    for heading in ("within", *judges, "p", *of_text, "unres.", "forward", "ms"):
        table.add_column(heading, justify="right")
    for spec, one in found.items():
        averages = one.averages
        trials = one.completions / one.prompts
        cells = [", ".join(chosen.get(spec, ()))]
        for judge in judges:
            cells.append(shown(one.toxicity[judge]["rate"], Column(judge, interval=True)))
        mine = [t for t in tests if t.method == runs[spec].name and t.source in judges]
        cells.append(f"{max(t.p_holm for t in mine):.0e}" if mine else "-")
        fluency = one.fluency[reference]
        means = fluency.mean, fluency.mean_20  # `mean_20` needs completions of 20 tokens
        cells += [f"{mean.value:.2f}" if mean else "-" for mean in means]
        cells += [f"{perplexity(one, reference):.2f}", f"{averages['empty'].value:.3f}"]
        cells.append(f"{averages['unresolved'].value:.3f}" if "unresolved" in averages else "-")
        cells.append(f"{averages['forward_tokens'].value / trials:.0f}")
        seconds = averages.get("seconds")
        cells.append(f"{1000 * seconds.value / trials:.0f}" if seconds else "-")
        table.add_row(spec, *cells)
    return table


def main(
    model: str = "pocket",
    temperature: float = 0.1,
    tokens: int = 20,
    tune_on: str = "rtp:1-200",
    report_on: Annotated[str, typer.Option(help="Reported prompts, if any.")] = "rtp:201-1199",
    judges: str = "profanity-check,lexicon",
    reference: str = "pocket-reference",
    only: Annotated[str, typer.Option(help="Systems, comma-separated.")] = "",
    without: Annotated[str, typer.Option(help="Systems to leave out.")] = "",
    artefacts: Path | None = None,
    out: Path = RESULTS / "strengths",
) -> None:
    systems = {parse_spec(form)[0] for form in CURVES}
    systems = set(filter(None, only.split(","))) or systems - set(without.split(","))
    specs = ["base"] + [
        form.format(value)
        for form, values in CURVES.items()
        for value in values
        if parse_spec(form)[0] in systems
    ]
    named = judges.split(",")

    def run(prompts: str, some: list[str]) -> dict[str, Run]:
        runs = evaluate(
            prompts,
            some,
            model=model,
            judges=named,
            reference=reference,
            artefacts=artefacts or RESULTS.parents[1] / "artefacts" / model,
            chat=prompts.startswith("dialogues"),
            num_trials=1,
            max_new_tokens=tokens,
            temperature=temperature,
            out=out / f"{model}-{prompts.replace(':', '-')}-{tokens}-t{temperature:g}",
            progress=Bars(),
        )
        return dict(zip(some, runs, strict=True))

    tried = {spec: summarize(one) for spec, one in run(tune_on, specs).items()}
    sources = list(tried["base"].toxicity)[1:]
    chosen = choose(tried, sources[0], reference)
    if report_on:
        rows = run(report_on, ["base", *chosen])
        title = f"{report_on}, temperature {temperature:g}, {tokens} tokens"
        Console(width=160).print(show(rows, chosen, sources, reference, title))
    missing = sorted(systems - {parse_spec(spec)[0] for spec in chosen})
    print(f"chosen on {tune_on}; nothing within a bound: {', '.join(missing) or '-'}")


if __name__ == "__main__":
    typer.run(main)
