"""`tide score` scores texts, and `tide threshold` chooses a threshold from a monitor log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from tide.cli import options
from tide.cli.display import OUTPUT, on_one_line
from tide.core.errors import InputError
from tide.core.results import format_score
from tide.data.files import refuse_input, replaced, writing
from tide.evaluation.console import ERRORS, Bars, chunks, masked
from tide.scorers import DEFAULT_SCORER

if TYPE_CHECKING:
    from tide.scorers.base import Exchange, Scorer

_CHUNK = 256  # texts scored between two updates of a progress bar


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
    from tide.evaluation.judging import open_scorers  # noqa: PLC0415  (slow imports)
    from tide.scorers.base import Exchange  # noqa: PLC0415
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
        named = open_scorers(scorers or [DEFAULT_SCORER], stack, "--scorer")
        loaded = [with_word_lists(opened.scorer) for opened in named]
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


def _scored(scorer: Scorer, texts: Sequence[Exchange]) -> list[float]:
    """Score all `texts`, even nearly empty texts, with a progress bar."""
    from tide.scorers.base import score_texts  # noqa: PLC0415  (slow import)

    scores: list[float] = []
    for chunk in chunks(texts, _CHUNK, scorer.name, Bars()):
        scores += score_texts(scorer, chunk).values.tolist()
    return scores


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
    from tide.evaluation import thresholds  # noqa: PLC0415  (slow import)

    scores, unscored = thresholds.read_monitor_log(log, policy)
    choice = thresholds.choose_threshold(scores, alter_at_most)
    needed = thresholds.answers_needed(alter_at_most)
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
