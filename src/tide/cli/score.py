"""`tide score`: toxicity of texts by any scorers."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from tide.cli import options
from tide.cli.display import ERRORS, OUTPUT, on_one_line, refuse_existing, say_unmasked, scored
from tide.core.errors import InputError
from tide.core.results import format_score
from tide.data.files import replaced, writing
from tide.data.prompts import Row, read_rows
from tide.evaluation.masking import Masker


def score(
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to score.")] = None,
    input_file: options.InputFile = None,
    output: Annotated[
        Path | None,
        options.option("Output", "Write records to this .jsonl.", "--output", "-o"),
    ] = None,
    scorers: options.Scorers = None,
    strict_language: options.StrictLanguage = False,
    field: options.Field = "text",
    limit: options.Limit = None,
    overwrite: options.Overwrite = False,
    mask: options.Mask = False,
) -> None:
    """Score TEXTS (or those of --input): one column for each --scorer.

    Texts are scored unchanged, short ones too.
    """
    from tide.scorers import load_scorer  # noqa: PLC0415  (slow import)

    if (input_file is None) == (not texts):
        raise InputError("give texts or --input (one of them)")
    with nullcontext() if output is None else writing(output):
        refuse_existing(overwrite, output, inputs=[input_file])
        rows = (
            read_rows(input_file, field=field, limit=limit)
            if input_file is not None
            else [Row(number, text) for number, text in enumerate((texts or [])[:limit])]
        )
        loaded = [
            load_scorer(options.strict(name, strict_language)) for name in scorers or ["pocket"]
        ]
        bodies = [row.text for row in rows]
        columns = {scorer.name: scored(scorer, bodies) for scorer in loaded}
        if output is not None:
            with replaced(output) as file:
                for i, row in enumerate(rows):
                    by_name = {name: values[i] for name, values in columns.items()}
                    record = {"id": row.id, "text": row.text, "scores": by_name}
                    file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            ERRORS.print(f"{output}: {len(rows)} records")
            if mask:
                say_unmasked(output)
            return
    table = Table()
    table.add_column("text", overflow="fold")
    maskers = [Masker(scorer) for scorer in loaded] if mask else []
    for scorer in loaded:
        table.add_column(scorer.name, justify="right")
    for i, row in enumerate(rows):
        body = row.text
        for masker in maskers:
            body = masker(body)
        body = on_one_line(body) or "(empty)"
        found = [(scorer, columns[scorer.name][i]) for scorer in loaded]
        scores = (format_score(score, score < one.threshold, digits=3) for one, score in found)
        table.add_row(Text(body), *scores)
    OUTPUT.print(table)
