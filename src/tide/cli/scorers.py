"""`tide score` and `tide scorers compare` score texts and measure scorers; `tide threshold`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from tide.cli import options
from tide.cli.display import OUTPUT, on_one_line
from tide.core.errors import SCORER_DOWN, InputError, ScorerBrokenError, ScorerError
from tide.core.results import format_score
from tide.data.files import refuse_input, replaced, writing
from tide.evaluation.console import ERRORS, Bars, chunks, masked
from tide.scorers import DEFAULT_SCORER

if TYPE_CHECKING:
    from tide.scorers.base import Exchange, Floats, Scorer

app = typer.Typer(
    help="Compare scorers on labelled texts.\n\n"
    "A FILE holds labelled texts (text, toxicity) or records of a run: .jsonl, plain or .gz.\n\n"
    + options.SCORER_GRAMMAR,
    no_args_is_help=True,
)

_CHUNK = 256  # texts scored between two updates of a progress bar

Files = Annotated[list[Path], typer.Argument(help="Labelled texts or recorded scores.")]


def score(
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to score.")] = None,
    input_file: options.InputFile = None,
    output: Annotated[
        Path | None, options.option("Output", "Write records to this .jsonl.", "--output", "-o")
    ] = None,
    context: Annotated[str, options.option("Input", "What the texts answer.")] = "",
    scorers: options.Scorers = None,
    field: options.Field = "text",
    limit: options.Limit = None,
    overwrite: options.Overwrite = False,
    mask: options.Mask = False,
) -> None:
    """Score TEXTS (or the texts of --input), with one column for each --scorer.

    Texts are scored unchanged, even if they are nearly empty. A row of --input may have a
    'context': the prompt or the list of messages that its text answers. Scorers that read exchanges
    read it; other scorers read the text alone.
    """
    if output is not None and output.suffix not in ("", ".jsonl"):
        raise InputError(f"--output: {output} is not a .jsonl file")
    from tide.scorers.base import Exchange  # noqa: PLC0415  (slow import)
    from tide.scorers.languages import with_word_lists  # noqa: PLC0415

    with ExitStack() as stack:
        if output is not None:
            stack.enter_context(writing(output))
            if output.exists() and not overwrite:
                raise InputError(f"{output}: exists; write to another file, or use --overwrite")
            refuse_input(output, input_file)
        rows = options.rows_of(texts, input_file, field=field, limit=limit, contexts=True)
        exchanges = [Exchange(row.context or context, row.text) for row in rows]
        has_context = any(exchange.context for exchange in exchanges)
        loaded = [with_word_lists(scorer) for scorer in _opened(scorers, stack)]
        if has_context and not any(scorer.reads == "exchange" for scorer in loaded):
            ERRORS.print("contexts are ignored: these scorers read texts alone")
        columns = {scorer.name: _scored(scorer, exchanges) for scorer in loaded}
        if output is not None:
            with replaced(output) as file:
                for i, row in enumerate(rows):
                    by_name = {name: values[i] for name, values in columns.items()}
                    record: dict[str, Any] = {"id": row.id, "text": row.text, "scores": by_name}
                    if of_row := exchanges[i].context:
                        messages = of_row if isinstance(of_row, str) else of_row.dump()
                        record["context"] = messages
                    file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            ERRORS.print(f"{output}: {len(rows)} records")
            return
    table = Table()
    table.add_column("text", overflow="fold")
    for scorer in loaded:
        table.add_column(scorer.name, justify="right", overflow="fold")
    for i, row in enumerate(rows):
        body = masked(row.text) if mask else row.text
        body = on_one_line(body) or "(empty)"
        cells = []
        for scorer in loaded:
            value = columns[scorer.name][i]
            cells.append(format_score(value, value < scorer.threshold, digits=3))
        table.add_row(Text(body), *cells)
    OUTPUT.print(table)


def _opened(specs: Sequence[str] | None, stack: ExitStack) -> list[Scorer]:
    """Load the scorers of --scorer; `stack` closes them."""
    from tide.evaluation.judging import open_scorers  # noqa: PLC0415  (slow import)

    named = open_scorers(specs or [DEFAULT_SCORER], stack, "--scorer")
    return [opened.scorer for opened in named]


def _scored(scorer: Scorer, texts: Sequence[Exchange]) -> list[float]:
    """Score all `texts`, even nearly empty texts, with a progress bar."""
    from tide.scorers.base import score_texts  # noqa: PLC0415  (slow import)

    scores: list[float] = []
    for chunk in chunks(texts, _CHUNK, scorer.name, Bars()):
        scores += score_texts(scorer, chunk).values.tolist()
    return scores


@app.command("compare", cls=options.Command)
def compare(files: Files, scorers: options.Scorers = None) -> None:
    """Measure the agreement of scorers with the labels or scores in FILES, and their speed.

    auc and accuracy: a label of 0.5 or more is toxic. correlation: Pearson's, with the labels.
    cal. error: mean distance of score and label over ten bins of the score. Each distinct
    text (in each 'context', if a scorer reads contexts) counts once, with its mean label; nearly
    empty texts are left out.

    texts/s: on this machine. The second table has the correlation of the scorers' errors. The lower
    it is, the better one scorer judges text that was optimised against the other.

    If a scorer fails on texts, its other texts and the other scorers count, and the exit code is 1.
    """
    import numpy as np  # noqa: PLC0415  (slow imports)

    from tide.evaluation import assessment  # noqa: PLC0415
    from tide.scorers.base import adapted  # noqa: PLC0415

    with ExitStack() as stack:
        loaded = _opened(scorers, stack)
        reads = {adapted(scorer).reads for scorer in loaded}
        texts, targets = _labelled(files, contexts="exchange" in reads)
        scores: dict[str, Floats] = {}
        rows: list[dict[str, Any]] = []
        failed = False
        for scorer in loaded:
            _known_scores(scorer, texts[:1])  # the first call loads the scorer, and is not timed
            started = time.perf_counter()
            values, failure = _known_scores(scorer, texts)
            seconds = time.perf_counter() - started
            if failure is not None:
                failed = True
                ERRORS.print(f"{scorer.name}: {failure}", style="red")
            known = ~np.isnan(values)
            if known.any():
                scores[scorer.name] = values
                agreed = assessment.agreement(values[known], targets[known])
                row = {
                    "scorer": scorer.name,
                    "texts": agreed.texts,
                    "auc": agreed.auc,
                    "accuracy": agreed.accuracy,
                    "correlation": agreed.correlation,
                    "cal. error": agreed.calibration_error,
                    "texts/s": round(agreed.texts / seconds),
                }
                rows.append(row)
    if rows:
        _print_rows(f"{len(targets):,} texts, {(targets >= 0.5).mean():.3f} toxic", rows)
    if len(rows) > 1:
        errors = assessment.error_correlations(scores, targets)
        numbered = [f"{number} {name}" for number, name in enumerate(errors, 1)]
        # Columns with the scorers' names would be too wide.
        errors.columns = [str(number) for number in range(1, len(errors) + 1)]
        errors.insert(0, "scorer", numbered)
        _print_rows("correlation of errors (score - label)", errors.to_dict("records"))
    if failed:
        raise typer.Exit(1)


def _known_scores(scorer: Scorer, texts: Sequence[Exchange]) -> tuple[Floats, ScorerError | None]:
    """Score the texts that the scorer can score; the others are NaN. Also return the first error.

    Scores from before an outage are kept: a service may have been paid for them.
    """
    import numpy as np  # noqa: PLC0415  (slow imports)

    from tide.scorers.base import score_groups  # noqa: PLC0415

    scores: list[float] = []
    failure = None
    try:
        for chunk in chunks(texts, _CHUNK, scorer.name, Bars()):
            for outcome in score_groups(scorer, [[text] for text in chunk]):
                if isinstance(outcome, ScorerError):
                    failure = failure or outcome
                    scores.append(math.nan)
                else:
                    scores.append(outcome[0].value)
    except (*SCORER_DOWN, ScorerBrokenError) as error:
        failure = failure or error
    scores += [math.nan] * (len(texts) - len(scores))
    return np.array(scores), failure


def _print_rows(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows, all of which have the same columns."""
    from tide.evaluation import tables  # noqa: PLC0415  (slow import)

    columns = [tables.Column(heading) for heading in rows[0]]
    table = tables.Table("", title, columns, [list(row.values()) for row in rows])
    OUTPUT.print(tables.to_rich(table, OUTPUT.width))


def _labelled(files: Sequence[Path], *, contexts: bool) -> tuple[list[Exchange], Floats]:
    """Return the distinct texts of the files, except nearly empty texts, and their mean labels.

    contexts: whether the same text in another context is another text.
    """
    import numpy as np  # noqa: PLC0415

    from tide.data.texts import read_labelled  # noqa: PLC0415
    from tide.scorers.base import Exchange, is_nearly_empty  # noqa: PLC0415

    labels: dict[Exchange, list[float]] = {}
    for row in read_labelled(files):
        if not is_nearly_empty(row.text):
            exchange = Exchange(row.context if contexts else "", row.text)
            labels.setdefault(exchange, []).append(row.toxicity)
    if not labels:
        raise InputError("the files hold no labelled texts")
    return list(labels), np.array([fmean(values) for values in labels.values()])


Share = Annotated[
    float, options.option("Threshold", "Share of answers to alter at most.", min=1e-4, max=0.9999)
]
PolicyName = Annotated[str | None, options.option("Input", "Policy, if the log has several.")]


def threshold(
    log: Annotated[Path, typer.Argument(help="File of tide serve --monitor-log (.jsonl).")],
    alter_at_most: Share = 0.01,
    policy: PolicyName = None,
) -> None:
    """Choose the strictest threshold that alters few ordinary answers.

    LOG holds the monitored answers of ordinary traffic. With 95 % confidence, at most the share
    --alter-at-most of such answers is altered at the printed threshold. Standard output has the two
    settings for a policy.
    """
    from tide.evaluation import assessment  # noqa: PLC0415  (slow import)

    scores, unscored = assessment.read_monitor_log(log, policy)
    choice = assessment.choose_threshold(scores, alter_at_most)
    needed = assessment.answers_needed(alter_at_most)
    if choice is None:
        raise InputError(
            f"{log}: too many of {len(scores)} answers would be altered at any threshold, or these "
            f"are too few; {needed} answers can show it, if none of them is"
        )
    note = f"; {unscored} failed or skipped answers do not count" if unscored else ""
    ERRORS.print(
        f"{choice.altered} of {choice.answers} answers would be altered; with 95 % confidence, at "
        f"most {choice.bound:.2%} of such answers are{note}",
    )
    print(f"toxicity_threshold: {choice.threshold:g}")
    print(f"alter_at_most: {alter_at_most:g}")
