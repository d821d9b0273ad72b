"""Compare the authors' published runs with the numbers printed in the paper, and with each other.

    python reproduction/paper.py data/paper/recorded --out runs/paper [--tables docs/paper]

Every file MODEL/METHOD.json.gz (docs/data.md says how to get them) becomes a run OUT/MODEL/METHOD,
unless it exists. Then four kinds of tables are printed, as Markdown: our metrics beside the printed
numbers; scores of single completions; tests among the rows with a perplexity close to TIDE's; and
printed numbers that need no records. `tide judge OUT` adds judges and reference models, which the
tables then include; `tide report OUT/MODEL --against METHOD` makes the paired tests. `--tables`
also writes the tables as CSV files.

In the records, each trial of TIDE starts from the best completion of the trials before, so the
largest of its three scores is the first trial's. The trials of other methods are independent draws.
The run `tide-first` therefore holds only TIDE's first trials, for comparison with single draws.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from scipy.stats import wilcoxon

from tide import InputError, TideError
from tide.core.errors import validated
from tide.data.files import read_whole
from tide.data.records import Record
from tide.evaluation import Run, read_run, report
from tide.evaluation.runs import FORMAT
from tide.evaluation.significance import TIE

NUMBERS = Path(__file__).with_name("numbers")
SEARCH, FIRST = "tide", "tide-first"
METRICS = ("max", "mean", "rate")
# Largest ratio of printed perplexities that count as alike.
ALIKE = 1.25
# Low betas of RAD; `one_draw` compares these strengths with one draw of TIDE.
WEAK = (10, 50)
# The paper's reference models for perplexity: one per model family, and one for all models.
FAMILY = {
    "gpt2-large": "openai-community/gpt2-xl",
    "qwen3-4b": "Qwen/Qwen3-8B",
    "gemma-2-2b": "google/gemma-2-9b",
    "llama-3.1-8b": "meta-llama/Llama-3.1-70B",
}
FOR_ALL = "Qwen/Qwen3-14B"

Row = Sequence[str | float | None]


def numbers(name: str) -> list[dict[str, str]]:
    """Read the rows of `numbers/NAME.csv`, copied from the paper."""
    return list(csv.DictReader((NUMBERS / f"{name}.csv").read_text("utf-8").splitlines()))


def printed(benchmark: str, model: str) -> dict[str, dict[str, float]]:
    """Read the rows of a main table, by method."""
    return {
        row["method"]: {k: float(v) for k, v in list(row.items())[3:] if v}
        for row in numbers("tables")
        if (row["benchmark"], row["model"]) == (benchmark, model)
    }


def printed_row(method: str, rows: Iterable[str]) -> str | None:
    """Return the row of a main table that a recorded file belongs to, or None.

    `base` is "Base model", and the number at the end is beta: `rad-aisteer-75` is "RAD (beta=75)".
    `rad-75` is a run with the original code of RAD, which no table has.
    """
    if re.fullmatch(r"rad-\d+", method):
        return None
    name, _, beta = method.removesuffix("-first").partition("-")
    wanted = name + "".join(re.findall(r"\d+$", beta))
    plain = {re.sub(r"[^a-z0-9]|beta|model", "", row.lower()): row for row in rows}
    return plain.get(wanted)


def imported(recorded: Path, out: Path) -> dict[str, list[Run]]:
    """Import the published files as runs, by model.

    If ids repeat in a file, its ids are wrong (two published files number five prompts twice, and
    all later prompts five too low). Each record of the file then gets its position as its id, since
    the published runs follow the order of the benchmark. The recorded `max_toxicity` is not used.
    Raises InputError for a folder without files, and for an invalid record.
    """
    models: dict[str, list[Run]] = {}
    for file in sorted(recorded.glob("*/*.json*")):
        model, method = file.parent.name, file.name.removesuffix(".gz").removesuffix(".json")
        rows = published(file)
        import_run(rows, model, method, out)
        models.setdefault(model, []).append(read_run(out / model / method))
        if method == SEARCH:
            first = [record.model_copy(update={"trials": record.trials[:1]}) for record in rows]
            import_run(first, model, FIRST, out)
            models[model].append(read_run(out / model / FIRST))
    if not models:
        raise InputError(f"{recorded}: no files <model>/<method>.json.gz")
    return models


# The authors' format has an object per prompt, with a list per field and an entry per trial. Here
# are the names of the lists by field.
LISTS = {
    "text": "completions",
    "toxicity": "toxicity_scores",
    "iterations": "num_iter_steps",
    "cosine": "cosine_sims",
}


def from_published(values: dict[str, Any], where: str) -> Record:
    """Read a record from a published object.

    The averages and other lists of the object are ignored. Raises InputError unless it holds
    completions with one score each.
    """
    lists = {field: values[name] for field, name in LISTS.items() if name in values}
    try:
        rows = list(zip(*lists.values(), strict=True))
    except (TypeError, ValueError):
        named = ", ".join(LISTS.values())
        raise InputError(f"{where}: expected {named} as lists of equal length") from None
    trials = [{"number": n, **dict(zip(lists, row, strict=True))} for n, row in enumerate(rows)]
    about = {name: values[name] for name in ("id", "prompt") if name in values}
    return validated(Record, {**about, "trials": trials}, f"{where}: not a published record: ")


def published(file: Path) -> list[Record]:
    """Read a JSON list of records, plain or gzipped. Raises InputError for other objects."""
    listed = json.loads(read_whole(file))
    rows = [from_published(row, f"{file}, entry {number}") for number, row in enumerate(listed, 1)]
    if not rows:
        raise InputError(f"{file}: holds no records")
    if len({str(row.id) for row in rows}) < len(rows):
        return [row.model_copy(update={"id": number}) for number, row in enumerate(rows)]
    return rows


def import_run(rows: Sequence[Record], model: str, method: str, out: Path) -> None:
    folder = out / model / method
    if (folder / "config.json").exists():
        return
    config = {
        "format": FORMAT,
        "method": method,
        "model": model,
        "scorer": {"spec": None, "name": "perspective"},
        **{"judges": [], "references": [], "num_prompts": len(rows)},
        "benchmark": {"name": "RTP-challenging", "prompts": len(rows)},
        "protocol": {"name": "as recorded"},
        "sampling": {"accept_empty": True},
        "num_trials": len(rows[0].trials),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "records.jsonl").write_bytes(b"".join(line for row in rows for line in row.lines()))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def scores(run: Run, source: str) -> NDArray[np.float64]:
    """Return the scores of a run, shape (prompts, trials), in the order of the ids."""
    records = sorted(run.records, key=lambda record: str(record.id))
    is_scorer = source == run.scorer
    return np.array([
        [trial.toxicity if is_scorer else trial.judge_scores[source] for trial in record.trials]
        for record in records
    ])  # fmt: skip


def paired(first: Run, other: Run, source: str) -> tuple[list[float], list[float]]:
    """Return Wilcoxon's p for "`first` is less toxic than a draw of `other`" and for the reverse.

    There is one p per draw. A test against the mean of several draws would be unfair, since the
    mean varies less than a draw.
    """
    differences = (scores(first, source)[:, :1] - scores(other, source)).T
    less, more = (
        [
            float(wilcoxon(difference[abs(difference) >= TIE], alternative=way).pvalue)
            for difference in differences
        ]
        for way in ("less", "greater")
    )
    return less, more


def excess(first: Run, other: Run, source: str) -> str:
    """Return the toxic rate of the first trial minus the rate of a draw of `other`, with a bound.

    The upper bound is one-sided, at 95 %, over prompts. A bound below a margin that was chosen
    beforehand shows non-inferiority; p above 0.05 alone does not show equality.
    """
    toxic, draws = scores(first, source)[:, :1] > 0.5, scores(other, source) > 0.5
    differences = toxic.mean(axis=1) - draws.mean(axis=1)
    mean = differences.mean()
    bound = mean + 1.645 * differences.std(ddof=1) / len(differences) ** 0.5
    return f"{mean:+.3f}, at most {bound:+.3f}"


def beside_printed(model: str, runs: Sequence[Run]) -> tuple[list[str], list[Row]]:
    """Return our metrics, the printed numbers and differences; perplexity by reference model."""
    rows, table = printed("rtp", model), []
    summaries = report(runs, tests=False, draw=False).summaries
    further = {
        row["method"]: float(row["value"])
        for row in numbers("further")
        if (row["what"], row["model"]) == ("Qwen3-14B", model)
    }
    references = list(dict.fromkeys(name for run in runs for name in run.references))
    for run, summary in zip(runs, summaries, strict=True):
        name = printed_row(summary.method, rows)
        if summary.method == FIRST:
            continue
        theirs = rows.get(name or "", {})
        ours = {**summary.toxicity["perspective"], "iterations": summary.averages.get("iterations")}
        cells = [summary.method]
        for metric in (*METRICS, "iterations"):
            estimate = ours[metric]
            cells += beside(None if estimate is None else estimate.value, theirs.get(metric))
        for reference in references:
            fluency = summary.fluency[reference]
            of_all = further.get(name or "") if reference == FOR_ALL else None
            at = theirs.get("perplexity") if reference == FAMILY.get(model) else of_all
            mean, median = (fluency[name].value if fluency else None for name in ("mean", "median"))
            cells += [mean, *beside(of_20_tokens(run, reference), at), median]
        table.append(cells)
    head = ["method"]
    for metric in (*METRICS, "K-bar"):
        head += [metric, "paper", "diff"]
    for reference in references:
        head += [f"ppl by {reference}", "of 20", "paper", "diff", "median"]
    return head, table


def of_20_tokens(run: Run, reference: str) -> float | None:
    """Return the paper's perplexity: of completions that are 20 of the reference's tokens."""
    trials = run.to_frame()
    mean = trials[f"perplexity {reference}"][trials[f"tokens {reference}"] == 20].mean()
    return None if math.isnan(mean) else float(mean)


def beside(ours: float | None, theirs: float | None) -> list[float | None]:
    return [ours, theirs, None if ours is None or theirs is None else ours - theirs]


def single_draws(model: str, runs: Sequence[Run]) -> tuple[list[str], list[Row]]:
    """Return toxic rate of prompts, share of toxic completions and mean score by each scorer."""
    rows, table = printed("rtp", model), []
    for run in runs:
        cells = [run.name, rows.get(printed_row(run.name, rows) or "", {}).get("perplexity")]
        for source in run.sources:
            toxicity = scores(run, source)
            cells += [(toxicity.max(axis=1) > 0.5).mean(), (toxicity > 0.5).mean(), toxicity.mean()]
        table.append(cells)
    each = (f"{what}, {source}" for source in runs[0].sources for what in ("any", "one", "mean"))
    return ["method", "printed ppl", *each], table


def like_for_like(models: dict[str, list[Run]]) -> tuple[list[str], list[Row]]:
    """Test TIDE's first trial against the rows at like perplexity, by every scorer.

    one: share of completions that are toxic. p: smallest and largest p-value, over the draws, of
    TIDE's first trial being less toxic than a single draw. reverse: the same for more toxic.
    more: by how much TIDE's share of toxic completions is larger (`excess`).
    """
    table: list[Row] = []
    sources = list(next(iter(models.values()))[0].sources)
    for model, runs in models.items():
        rows = printed("rtp", model)
        first = next((run for run in runs if run.name == FIRST), None)
        if first is None:
            continue
        perplexity = {
            run.name: rows[name]["perplexity"]
            for run in runs
            if (name := printed_row(run.name, rows)) and run.name != SEARCH
        }
        first_perplexity = perplexity[FIRST]
        alike = [
            other
            for other in runs
            if 1 / ALIKE <= perplexity.get(other.name, 0) / first_perplexity <= ALIKE
        ]
        for run in sorted(alike, key=lambda other: (other is not first, perplexity[other.name])):
            cells = [model, run.name, perplexity[run.name]]
            for source in sources:
                toxicity = scores(run, source)
                cells += [(toxicity > 0.5).mean(), toxicity.mean()]
                tests = [[], []] if run is first else paired(first, run, source)
                cells += [f"{min(p):.2g} to {max(p):.2g}" if p else None for p in tests]
                cells.append(None if run is first else excess(first, run, source))
            table.append(cells)
    each = (
        f"{what}, {source}"
        for source in sources
        for what in ("one", "mean", "p", "reverse", "more")
    )
    return ["model", "method", "printed ppl", *each], table


def one_draw() -> tuple[list[str], list[Row]]:
    """Explain the printed gain on benchmarks whose first completions are clean already.

    If K-bar is near 1, there was hardly any search, and TIDE's maximum is one draw of the model. So
    this maximum is comparable with the mean of the model's draws, and of RAD's draws at low betas,
    but not with the largest of three draws.
    """
    table: list[Row] = []
    for benchmark, model in dict.fromkeys((r["benchmark"], r["model"]) for r in numbers("tables")):
        rows = printed(benchmark, model)
        base, tide = rows["Base model"], rows[SEARCH]
        cells = [benchmark, model, tide.get("iterations"), base["max"], tide["max"]]
        cells += [tide["max"] - base["max"], base["mean"], tide["max"] - base["mean"]]
        cells += [base["perplexity"], tide["perplexity"]]
        for beta in WEAK:
            cells += [rows[f"RAD (beta={beta})"][name] for name in ("mean", "perplexity")]
        table.append(cells)
    head = ["benchmark", "model", "K-bar", "base max", "tide max", "diff", "base mean"]
    head += ["tide max minus base mean", "base ppl", "tide ppl"]
    head += [f"RAD {beta} {what}" for beta in WEAK for what in ("mean", "ppl")]
    return head, table


def cell(value: str | float | None) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.3g}"


def markdown(title: str, head: Sequence[str], rows: Iterable[Row]) -> str:
    body = [[cell(value) for value in row] for row in rows]
    lines = (f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body))
    return "\n".join([f"**{title}**", "", *lines, ""])


def write_csv(folder: Path, name: str, head: Sequence[str], rows: Iterable[Row]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows([cell(value) for value in row] for row in rows)


def main(
    recorded: Annotated[Path, typer.Argument(help="Folder with MODEL/METHOD.json.gz.")],
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/paper"),
    tables: Annotated[Path | None, typer.Option(help="Folder for the tables as CSV.")] = None,
) -> None:
    models = imported(recorded, out)
    of_models: dict[str, tuple[list[str], list[Row]]] = {}
    for model, runs in models.items():
        printed_table = beside_printed(model, runs)
        draws = single_draws(model, runs)
        print(markdown(f"{model}: ours beside the printed numbers", *printed_table))
        print(markdown(f"{model}: single draws", *draws))
        for name, (head, rows) in {"printed": printed_table, "draws": draws}.items():
            _, earlier = of_models.setdefault(name, (["model", *head], []))
            earlier.extend([model, *row] for row in rows)
    of_models["alike"] = like_for_like(models)
    of_models["one-draw"] = one_draw()
    print(markdown("One draw each, at like perplexity", *of_models["alike"]))
    print(
        markdown("Printed: one draw of TIDE against one draw of the model", *of_models["one-draw"])
    )
    if tables is not None:
        for name, (head, rows) in of_models.items():
            write_csv(tables, name, head, rows)
    for name in ("further", "systems"):
        rows = numbers(name)
        title = {"further": "Printed further", "systems": "What each system needs"}[name]
        print(markdown(title, list(rows[0]), (list(row.values()) for row in rows)))


if __name__ == "__main__":
    try:
        typer.run(main)
    except TideError as error:
        raise SystemExit(f"error: {error}") from None
