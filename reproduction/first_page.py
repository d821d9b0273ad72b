"""The first page's table, from one command: the default of the product beside its rivals.

    for system in word-filter destein; do
        tide fit $system --model smollm2 --data data/labelled/toxicity.jsonl.gz \
            --data data/labelled/paradetox_pairs.jsonl.gz --out artefacts-smollm2
    done
    python reproduction/first_page.py smollm2 --seeds 3 --artefacts artefacts-smollm2

Every method runs with the default guide and its threshold on prompts 601 to 1199 of
RealToxicityPrompts-challenging (20 tokens, temperature 0.1) and, with seed 0, on 100 ordinary
questions (60 tokens, temperature 0.7, in the chat template if there is one). `--rows` runs some of
the methods; finished records are kept, and the tables always have all runs of OUT. They are printed
and written to OUT as `table.csv`, `tests.csv` and `equivalence.csv`.

Shares are of completions, also of those that a method withholds. *harmless altered*: of the model's
own completions that the first judge calls harmless. *ordinary altered*: of the answers to ordinary
questions; a search of whole texts alters an answer exactly if its score reaches the threshold, so
the model's own answers tell how many. Intervals are of 95 %, by a bootstrap over prompts with all
seeds of a prompt. Tests: Wilcoxon's, two-sided, of each prompt's share of toxic
completions over the seeds that both methods have, against `backtrack`, with Holm's correction over
the table. Equivalence: two one-sided tests with a margin of 0.02 for toxicity, and the ratio of
forward tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from frontier import add_estimate, changes, share
from scipy.stats import bootstrap, norm

from tide import InputError, TideError, load_engine
from tide.core.settings import Settings
from tide.data.records import TrialRecord
from tide.data.texts import read_rows
from tide.evaluation import Bars, Run, evaluate, find_runs, frame, judge, read_run
from tide.evaluation.metrics import Estimate, summarize
from tide.evaluation.significance import holm, signed_rank

REPOSITORY = Path(__file__).parents[1]
ORDINARY = REPOSITORY / "benchmarks/questions/ordinary.jsonl"
PROMPTS = "rtp:601-1199"
EVERY = 2  # every second of the ordinary questions is asked
# Two judges that read sentences and share no training text, and one of words.
JUDGES = (
    "sentence",
    f"{REPOSITORY / 'benchmarks/lstm_judge.py'}:LSTMJudge",
    "profanity-check",
)
THRESHOLD = Settings().toxicity_threshold
# Searches reject looping texts, as `backtrack` does by rewinding word by word.
METHODS = {
    "base": "base",
    "word-filter": "word-filter",
    "resample": "resample:temperature=0.7,reject_degenerate=true",
    "random-walk": "random-walk:reject_degenerate=true",
    "tide": "tide:reject_degenerate=true",
    "shuffled": "shuffled:reject_degenerate=true",
    "destein": "destein:alpha=0.3",
    "rad": "rad:beta=50",
    "backtrack": "backtrack",
}
ALL = ",".join(METHODS)
DRAWS = {"destein": 3}  # draws until the guide accepts one
WHOLE = ("resample", "random-walk", "tide", "shuffled")  # begin with the model's own whole text
DEFAULT = "backtrack"
SEARCH, CONTROLS = "tide", ("shuffled", "random-walk")
MARGIN = 0.02

COSTS = ("evaluations", "rounds", "generated_tokens", "forward_tokens")


def generate(
    rows: Sequence[str],
    seeds: int,
    model: str,
    other: str,
    artefacts: Path | None,
    out: Path,
) -> None:
    """Run the methods on both sets of prompts, seed by seed."""
    provoking, ordinary = out / "provoking", out / "ordinary"
    with load_engine("transformers", model) as engine:
        common: dict[str, Any] = {
            "model": engine,
            "judges": JUDGES,
            "reference": "none",
            "artefacts": artefacts,
            "toxicity_threshold": THRESHOLD,
            "progress": Bars(),
        }
        questions = [row.text for row in read_rows(ORDINARY, field="text")][::EVERY]
        answers = {"chat": engine.has_chat_template, "temperature": 0.7, "max_new_tokens": 60}
        for seed in range(seeds):
            for name in rows:
                common |= {"seed": seed, "num_trials": DRAWS.get(name, 1), "methods": METHODS[name]}
                evaluate(PROMPTS, out=provoking / name, **common)
                if seed == 0 and name not in WHOLE:
                    evaluate(questions, out=ordinary / name, **common, **answers)
    judge([provoking / name for name in rows], reference=other, progress=Bars())


def first_accepted(draws: list[TrialRecord], below: float) -> TrialRecord:
    """Keep the first draw below `below`, with the costs until then; else the least toxic draw."""
    passing = (n for n, draw in enumerate(draws, 1) if draw.toxicity < below)
    drawn = draws[: next(passing, len(draws))]
    kept = min(drawn, key=lambda draw: draw.toxicity)
    costs = {name: sum(getattr(draw, name) for draw in drawn) for name in COSTS}
    accepted = {"number": 0, "accepted": kept.toxicity < below, "scorer_calls": len(drawn)}
    return kept.model_copy(update=costs | accepted)


def accepted_draws(run: Run) -> Run:
    """Sample by rejection: the draws of a run are independent, so it holds those of the loop."""
    records = [
        record.model_copy(update={"trials": [first_accepted(record.trials, THRESHOLD)]})
        for record in run.records
    ]
    return replace(run, records=records, config={**run.config, "num_trials": 1})


def runs_of(folder: Path, method: str) -> dict[int, Run]:
    """Read the runs of a method by their seeds."""
    runs = {}
    for path in find_runs([folder / method]):
        run = read_run(path)
        if run.config.get("num_trials", 1) > 1:
            run = accepted_draws(run)
        runs[int(run.settings["seed"])] = run
    return runs


def pooled(runs: dict[int, Run]) -> Run:
    """Return one run whose trials are those of the seeds."""
    first = next(iter(runs.values()))
    by_id: dict[Any, list[Any]] = {}
    for seed, run in sorted(runs.items()):
        for record in run.records:
            trial = record.trials[0].model_copy(update={"number": seed})
            by_id.setdefault(record.id, []).append((record, trial))
    records = [
        pairs[0][0].model_copy(update={"trials": [trial for _, trial in pairs], "seconds": None})
        for pairs in by_id.values()
        if len(pairs) == len(runs)
    ]
    return replace(first, records=records, config={**first.config, "num_trials": len(runs)})


def on_common_seeds(first: dict[int, Run], second: dict[int, Run]) -> tuple[Run, Run]:
    seeds = first.keys() & second.keys()
    return tuple(pooled({seed: runs[seed] for seed in seeds}) for runs in (first, second))


def short(source: str) -> str:
    return source.partition("@")[0]


def table(provoking: dict[str, dict[int, Run]], ordinary: dict[str, dict[int, Run]]) -> Any:
    """Return a frame with a row for each method; intervals are in columns of their own."""
    rows = []
    for name, runs in provoking.items():
        run, base = on_common_seeds(runs, provoking["base"])
        summary = summarize(run, unmodified_run=base)
        row: dict[str, Any] = {"method": name, "seeds": len(runs), "prompts": summary.prompts}
        judges = run.sources[1:]
        for source in judges:
            if "each" not in summary.toxicity[source]:
                raise InputError(f"{name}: a run has no scores of {source}; finish it with --rows")
            add_estimate(row, f"toxic by {short(source)}", summary.toxicity[source]["each"])
        altered = summary.toxicity[judges[0]].get("changed")
        if name != "base" and altered is not None:
            add_estimate(row, "harmless altered", altered)
        if name != "base" and (name in ordinary or name in WHOLE):
            add_estimate(row, "ordinary altered", ordinary_altered(name, ordinary))
        add_estimate(row, "degenerate", summary.averages["degenerate"])
        trials = frame(run)
        for reference in run.references:
            values = trials[f"perplexity {reference}"].dropna().to_numpy()
            if len(values) > 1:
                add_estimate(row, "perplexity", median(values))
        add_estimate(row, "forward tokens", of_prompts(np.mean, per_prompt(run, "forward_tokens")))
        not_accepted = trials["accepted"].dropna()
        if len(not_accepted):
            row["not accepted"] = float(1 - not_accepted.astype(float).mean())
        rows.append(row)
    return pd.DataFrame(rows)


def ordinary_altered(name: str, ordinary: dict[str, dict[int, Run]]) -> Estimate:
    unsteered = pooled(ordinary["base"])
    if name in WHOLE:
        altered = [trial.toxicity >= THRESHOLD for _, trial in unsteered.trials]
    else:
        altered = changes(unsteered, pooled(ordinary[name]))
    return share(altered)


def per_prompt(run: Run, column: str) -> Any:
    """Return the mean of a column over the trials of each prompt."""
    return frame(run).groupby("id")[column].mean()


def of_prompts(statistic: Any, *samples: Any) -> Estimate:
    """Return a statistic of values by prompt with its bootstrap interval."""
    data = [np.asarray(sample, dtype=float) for sample in samples]
    drawn = bootstrap(
        data,
        statistic,
        paired=True,
        vectorized=False,
        n_resamples=2000,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    interval = drawn.confidence_interval
    return Estimate(float(statistic(*data)), float(interval.low), float(interval.high))


median = partial(of_prompts, np.median)


def tests(provoking: dict[str, dict[int, Run]]) -> Any:
    """Compare each method's toxic share with that of the default."""
    rows = []
    for name, runs in provoking.items():
        if name == DEFAULT:
            continue
        run, default = on_common_seeds(runs, provoking[DEFAULT])
        for source in run.sources[1:]:
            gaps = differences(run, default, source)
            p_value = min(1.0, 2 * min(signed_rank(gaps), signed_rank(-gaps)))
            row = {"method": name, "against": DEFAULT, "judge": short(source), "prompts": len(gaps)}
            add_estimate(row, "difference", of_prompts(np.mean, gaps))
            rows.append({**row, "differ": int((gaps != 0).sum()), "p": p_value})
    for row, p_value in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p, Holm"] = p_value
    return pd.DataFrame(rows)


def differences(run: Run, other: Run, source: str) -> Any:
    """Return the differences of each prompt's share of toxic completions."""
    column = f"toxic {source}"
    return (per_prompt(run, column) - per_prompt(other, column)).dropna().to_numpy()


def equivalence(provoking: dict[str, dict[int, Run]]) -> Iterator[dict[str, Any]]:
    """Test the search against its controls: toxicity within the margin, and the ratio of tokens."""
    for name in CONTROLS:
        if name not in provoking or SEARCH not in provoking:
            continue
        control, search = on_common_seeds(provoking[name], provoking[SEARCH])
        for source in control.sources[1:]:
            gaps = differences(control, search, source)
            row = {"method": name, "against": SEARCH, "measure": f"toxic by {short(source)}"}
            row["prompts"] = len(gaps)
            add_estimate(row, "value", of_prompts(np.mean, gaps))
            yield {**row, "p of equivalence": equivalence_p(gaps)}
        tokens = [per_prompt(run, "forward_tokens") for run in (control, search)]
        row = {"method": name, "against": SEARCH, "measure": "forward tokens, ratio"}
        row["prompts"] = len(tokens[0])
        add_estimate(row, "value", of_prompts(ratio_of_means, *tokens))
        yield row


def ratio_of_means(first: Any, second: Any) -> float:
    return float(first.mean() / second.mean())


def equivalence_p(gaps: Any) -> float:
    """Return the larger p of both one-sided tests that the mean lies within the margin.

    A prompt that differs in each direction is added, so that no variance is 0.
    """
    more = np.append(gaps, [1.0, -1.0])
    error = more.std(ddof=1) / np.sqrt(len(more))
    return float(norm.sf((MARGIN - abs(gaps.mean())) / error))


def show(title: str, rows: Any, path: Path) -> None:
    rows.to_csv(path, index=False, float_format="%.4g")
    shown = rows.copy()
    for low in [column for column in rows if column.endswith(", low")]:
        name = low.removesuffix(", low")
        shown[name] = [
            "-" if pd.isna(value) else f"{value:.3g} [{start:.3g}, {end:.3g}]"
            for value, start, end in zip(rows[name], rows[low], rows[f"{name}, high"], strict=True)
        ]
        shown = shown.drop(columns=[low, f"{name}, high"])
    print(f"{title}\n\n{shown.to_markdown(index=False, floatfmt='.3g')}\n")


def main(
    model: Annotated[str, typer.Argument(help="smollm2 or gemma3-270m.")],
    seeds: Annotated[int, typer.Option(help="Number of seeds, from 0.", min=1)] = 3,
    rows: Annotated[str, typer.Option(help="Methods to run; '' makes only the tables.")] = ALL,
    other: Annotated[str, typer.Option(help="Model that measures perplexity.")] = "",
    artefacts: Annotated[Path | None, typer.Option(help="What `tide fit` wrote.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/first-page"),
) -> None:
    other = other or ("gemma3-270m" if model == "smollm2" else "smollm2")
    if rows:
        generate(rows.split(","), seeds, model, other, artefacts, out / model)
    folders = [out / model / kind for kind in ("provoking", "ordinary")]
    provoking, ordinary = (
        {name: runs_of(folder, name) for name in METHODS if (folder / name).is_dir()}
        for folder in folders
    )
    show(f"{model}: {PROMPTS}", table(provoking, ordinary), out / model / "table.csv")
    if DEFAULT in provoking:
        show(f"{model}: against {DEFAULT}", tests(provoking), out / model / "tests.csv")
    equal = pd.DataFrame(equivalence(provoking))
    if len(equal):
        show(f"{model}: margin {MARGIN}", equal, out / model / "equivalence.csv")


if __name__ == "__main__":
    try:
        typer.run(main)
    except TideError as error:
        raise SystemExit(f"error: {error}") from None
