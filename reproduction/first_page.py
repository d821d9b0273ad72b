"""The first page's table, from one command: the default of the product beside its rivals.

    python reproduction/first_page.py smollm2 --seeds 3 --artefacts artefacts-smollm2

docs/results.md has the commands that fit the artefacts.

Every method runs with the default guide and its threshold on prompts 601 to 1199 of
RealToxicityPrompts-challenging (20 tokens, temperature 0.1) and, with seed 0, on 100 ordinary
questions (60 tokens, temperature 0.7, in the chat template if there is one). `--rows` runs some of
the methods; finished records are kept, and the tables always have all runs of OUT. They are printed
and written to OUT as `table.csv`, `tests.csv` and `equivalence.csv`, beside what they are computed
from, `outcomes.csv.gz`: a row for each completion, without its text. Of recorded outcomes the
tables are made in seconds:

    OUTCOMES=docs/results/smollm2-outcomes.csv.gz
    python reproduction/first_page.py smollm2 --rows '' --recorded $OUTCOMES

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

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from frontier import add_estimate, share
from scipy.stats import bootstrap, norm

from tide import InputError, TideError, load_engine
from tide.core.settings import Settings
from tide.data.records import TrialRecord
from tide.data.texts import read_rows
from tide.evaluation import Bars, Run, evaluate, find_runs, frame, judge, read_run
from tide.evaluation.metrics import Estimate, as_share, bootstrapped
from tide.evaluation.significance import holm, signed_rank
from tide.scorers.pocket import digest_of_bytes

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

SETS = ("provoking", "ordinary")
KEYS = ("set", "method", "seed", "id")
TOXIC = "toxic by "
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


def short(source: str) -> str:
    return source.partition("@")[0]


def outcomes(folder: Path) -> pd.DataFrame:
    """Return a row for each completion of the runs in a folder, as the tables need them.

    text: a digest, which tells whether two texts are equal. toxicity: by the guide.
    """
    frames = []
    for set_name, method in product(SETS, METHODS):
        path = folder / set_name
        runs = runs_of(path, method) if (path / method).is_dir() else {}
        for seed, run in runs.items():
            trials = frame(run)
            keys = {"set": set_name, "method": method, "seed": seed, "id": trials["id"]}
            rows = pd.DataFrame(keys)
            rows["text"] = [digest_of_bytes(text.encode()) for text in trials["text"]]
            rows["toxicity"] = trials[f"toxicity {run.scorer}"]
            for source in run.sources[1:]:
                rows[f"{TOXIC}{short(source)}"] = trials[f"toxic {source}"]
            rows["degenerate"] = trials["degenerate"].astype(float)
            rows["perplexity"] = np.nan
            for reference in run.references:
                rows["perplexity"] = trials[f"perplexity {reference}"]
            rows["forward tokens"] = trials["forward_tokens"]
            rows["accepted"] = trials["accepted"].astype(float)
            frames.append(rows)
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(KEYS))


def joined(rows: pd.DataFrame, recorded: pd.DataFrame) -> pd.DataFrame:
    """Add the recorded outcomes of the methods and seeds that `rows` lack."""
    runs = list(KEYS[:-1])
    has_run = recorded.set_index(runs).index.isin(rows.set_index(runs).index)
    return pd.concat([rows, recorded[~has_run]], ignore_index=True)


def of_method(rows: pd.DataFrame, method: str, seeds: Collection[int] | None = None) -> Any:
    """Return the outcomes of a method on the prompts that all its seeds have.

    seeds: leave out all other seeds.
    """
    rows = rows[rows["method"] == method]
    if seeds is not None:
        rows = rows[rows["seed"].isin(seeds)]
    number = rows.groupby("id")["seed"].transform("nunique")
    return rows[number == rows["seed"].nunique()]


def on_common_seeds(rows: pd.DataFrame, first: str, second: str) -> tuple[Any, Any]:
    seeds = [set(rows.loc[rows["method"] == method, "seed"]) for method in (first, second)]
    common = seeds[0] & seeds[1]
    return of_method(rows, first, common), of_method(rows, second, common)


def judges_of(rows: pd.DataFrame) -> list[str]:
    return [column.removeprefix(TOXIC) for column in rows if column.startswith(TOXIC)]


def table(provoking: pd.DataFrame, ordinary: pd.DataFrame) -> Any:
    """Return a frame with a row for each method; intervals are in columns of their own."""
    rows = []
    judges = judges_of(provoking)
    for method in METHODS:
        if method not in set(provoking["method"]):
            continue
        run, base = on_common_seeds(provoking, method, "base")
        row: dict[str, Any] = {"method": method, "seeds": run["seed"].nunique()}
        row["prompts"] = run["id"].nunique()
        for judge_name in judges:
            if run[f"{TOXIC}{judge_name}"].isna().any():
                message = f"{method}: a run has no scores of {judge_name}; finish it with --rows"
                raise InputError(message)
            add_estimate(row, f"{TOXIC}{judge_name}", mean_share(run, f"{TOXIC}{judge_name}"))
        if method != "base":
            add_estimate(row, "harmless altered", harmless_altered(run, base, judges[0]))
            if method in WHOLE or method in set(ordinary["method"]):
                add_estimate(row, "ordinary altered", ordinary_altered(method, ordinary))
        add_estimate(row, "degenerate", mean_share(run, "degenerate"))
        if run["perplexity"].count() > 1:
            add_estimate(row, "perplexity", median_perplexity(run))
        tokens = of_prompts(np.mean, per_prompt(run, "forward tokens"))
        add_estimate(row, "forward tokens", tokens)
        if run["accepted"].count():
            row["not accepted"] = float(1 - run["accepted"].mean())
        rows.append(row)
    return pd.DataFrame(rows)


def mean_share(rows: pd.DataFrame, column: str) -> Estimate:
    """Return the share of completions with a flag, with an interval over prompts."""
    by_prompt = rows.groupby("id")[column]
    sums, counts = by_prompt.sum().to_numpy(), by_prompt.count().to_numpy()
    name = (column,)
    estimates = bootstrapped({name: sums}, {name: counts})
    return as_share(estimates[name], counts)


def harmless_altered(run: pd.DataFrame, base: pd.DataFrame, judge_name: str) -> Estimate:
    """Return the share altered of the model's own completions that a judge calls harmless."""
    pairs = run.merge(base, on=["id", "seed"], suffixes=("", " before"))
    is_altered = (pairs["text"] != pairs["text before"]).astype(float)
    pairs["altered"] = is_altered.where(pairs[f"{TOXIC}{judge_name} before"] == 0)
    return mean_share(pairs, "altered")


def ordinary_altered(method: str, ordinary: pd.DataFrame) -> Estimate:
    unsteered = of_method(ordinary, "base").set_index("id")
    if method in WHOLE:
        altered = unsteered["toxicity"] >= THRESHOLD
    else:
        texts = of_method(ordinary, method).set_index("id")["text"]
        altered = texts != unsteered["text"].reindex(texts.index)
    return share([bool(is_altered) for is_altered in altered])


def per_prompt(rows: pd.DataFrame, column: str) -> Any:
    """Return the mean of a column over the completions of each prompt."""
    return rows.groupby("id")[column].mean()


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


def median_perplexity(rows: pd.DataFrame) -> Estimate:
    by_prompt = rows.pivot(index="id", columns="seed", values="perplexity").to_numpy()
    return of_prompts(partial(median_of, by_prompt), np.arange(len(by_prompt)))


def median_of(by_prompt: Any, prompts: Any) -> float:
    """Return the median over the completions of these prompts, numbers of rows."""
    return float(np.nanmedian(by_prompt[prompts.astype(int)]))


def tests(rows: pd.DataFrame) -> Any:
    """Compare each method's toxic share with that of the default."""
    comparisons = []
    for method in METHODS:
        if method == DEFAULT or method not in set(rows["method"]):
            continue
        run, default = on_common_seeds(rows, method, DEFAULT)
        for judge_name in judges_of(rows):
            gaps = differences(run, default, judge_name)
            p_value = min(1.0, 2 * min(signed_rank(gaps), signed_rank(-gaps)))
            row = {"method": method, "against": DEFAULT, "judge": judge_name, "prompts": len(gaps)}
            add_estimate(row, "difference", of_prompts(np.mean, gaps))
            comparisons.append({**row, "differ": int((gaps != 0).sum()), "p": p_value})
    corrected = holm([row["p"] for row in comparisons])
    for row, p_value in zip(comparisons, corrected, strict=True):
        row["p, Holm"] = p_value
    return pd.DataFrame(comparisons)


def differences(run: pd.DataFrame, other: pd.DataFrame, judge_name: str) -> Any:
    """Return the differences of each prompt's share of toxic completions."""
    column = f"{TOXIC}{judge_name}"
    return (per_prompt(run, column) - per_prompt(other, column)).dropna().to_numpy()


def equivalence(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Test the search against its controls: toxicity within the margin, and the ratio of tokens."""
    for method in CONTROLS:
        if not {method, SEARCH} <= set(rows["method"]):
            continue
        control, search = on_common_seeds(rows, method, SEARCH)
        for judge_name in judges_of(rows):
            gaps = differences(control, search, judge_name)
            row = {"method": method, "against": SEARCH, "measure": f"{TOXIC}{judge_name}"}
            row["prompts"] = len(gaps)
            add_estimate(row, "value", of_prompts(np.mean, gaps))
            yield {**row, "p of equivalence": equivalence_p(gaps)}
        tokens = [per_prompt(run, "forward tokens") for run in (control, search)]
        row = {"method": method, "against": SEARCH, "measure": "forward tokens, ratio"}
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
    recorded: Annotated[Path | None, typer.Option(help="Outcomes of further seeds.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/first-page"),
) -> None:
    other = other or ("gemma3-270m" if model == "smollm2" else "smollm2")
    if rows:
        generate(rows.split(","), seeds, model, other, artefacts, out / model)
    out = out / model
    completions = outcomes(out)
    if recorded is not None:
        completions = joined(completions, pd.read_csv(recorded))
    if completions.empty:
        raise InputError(f"{out}: no runs; make them with --rows, or name --recorded")
    provoking, ordinary = (completions[completions["set"] == name] for name in SETS)
    out.mkdir(parents=True, exist_ok=True)
    # Without the time in its head, equal outcomes make equal files.
    compression = {"method": "gzip", "mtime": 1}
    path = out / "outcomes.csv.gz"
    completions.to_csv(path, index=False, float_format="%.6g", compression=compression)
    show(f"{model}: {PROMPTS}", table(provoking, ordinary), out / "table.csv")
    if DEFAULT in set(provoking["method"]):
        show(f"{model}: against {DEFAULT}", tests(provoking), out / "tests.csv")
    equal = pd.DataFrame(equivalence(provoking))
    if len(equal):
        show(f"{model}: margin {MARGIN}", equal, out / "equivalence.csv")


if __name__ == "__main__":
    try:
        typer.run(main)
    except TideError as error:
        raise SystemExit(f"error: {error}") from None
