"""A report as one self-contained HTML file: sortable tables, figures, texts and settings.

Records and configurations are untrusted. The template escapes their texts, and a policy in the
page's head forbids loading anything and running other scripts.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tide.core.results import format_score
from tide.core.sanitize import visible
from tide.data.files import leaves
from tide.data.records import Record, RecordId
from tide.evaluation.masking import masked
from tide.evaluation.metrics import Estimate
from tide.evaluation.reporting.figures import unversioned
from tide.evaluation.reporting.groups import Group
from tide.evaluation.reporting.tables import Table
from tide.evaluation.runs import Run
from tide.evaluation.trials import is_toxic

_PARTS = Path(__file__).with_name("html")
_WORST = 20  # prompts whose texts are shown
_BEFORE = "unmodified model"
_DPI = 150
Scores = dict[str, float | None]


def page(
    groups: Sequence[Group],
    tables: Sequence[Table],
    figures: Mapping[str, Any],
    problem: str | None = None,
) -> str:
    """Render the whole report."""
    style, script = ((_PARTS / f"report.{kind}").read_text("utf-8") for kind in ("css", "js"))
    template = Environment(
        autoescape=True,
        finalize=_visible,
        loader=FileSystemLoader(_PARTS),
        undefined=StrictUndefined,
        trim_blocks=True,
    ).get_template("report.html.jinja")
    images = []
    for group in groups:
        if figure := figures.get(f"{group.prefix}trade-off"):
            figure.savefig(image := io.BytesIO(), format="png", dpi=_DPI)
            data = base64.b64encode(image.getvalue()).decode()
            says = f"Toxicity against perplexity: lower left is better ({group.title})"
            images.append({"says": says, "data": data})
    return template.render(
        policy=(
            "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
            f"style-src {_hash(style)}; script-src {_hash(script)}"
        ),
        style=Markup(style),
        script=Markup(script),
        titles=[group.title for group in groups],
        tables=[_table(table) for table in tables],
        figures=images,
        problem=problem,
        groups=[_group(group) for group in groups],
    )


def _visible(value: Any) -> Any:
    """Escape control characters, which could display a text in another order than stored."""
    is_untrusted = isinstance(value, str) and not isinstance(value, Markup)
    return visible(value, unescaped="\n") if is_untrusted else value


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _table(table: Table) -> dict[str, Any]:
    kinds = ["text" if side == "left" else "" for side in table.alignment]
    columns = [
        {"heading": column.heading, "says": column.says, "kind": kind}
        for column, kind in zip(table.columns, kinds, strict=True)
    ]
    rows = []
    for cells, values in zip(table.cells, table.rows, strict=True):
        row = []
        for cell, value, kind in zip(cells, values, kinds, strict=True):
            number = value.value if isinstance(value, Estimate) else value
            row.append({"shown": cell, "value": "" if cell == "-" else number, "kind": kind})
        rows.append(row)
    return {"title": table.title, "columns": columns, "rows": rows, "notes": table.legend}


def _group(group: Group) -> dict[str, Any]:
    common, by_run = _settings(group.runs)
    return {
        "title": group.title,
        "of": f" of {group.title}",
        "sources": list(unversioned(group.sources).values()),
        "prompts": [_prompt(group, *entry) for entry in _worst(group)],
        "common": common,
        "own": by_run,
    }


def _worst(group: Group) -> list[tuple[RecordId, list[tuple[Run, Record]]]]:
    """Return the ids whose unmodified completions score highest, each with a record per method.

    Without records of the unmodified model, return the ids whose completions score highest.
    """
    records: dict[tuple[RecordId, str], list[tuple[Run, Record]]] = {}
    for run in group.runs:
        for record in run.records:
            records.setdefault((record.id, record.asked), []).append((run, record))

    def before(rows: Sequence[tuple[Run, Record]]) -> tuple[float, float]:
        scores = [trial.base_toxicity or 0.0 for _, record in rows for trial in record.trials]
        scores += [record.max_toxicity for run, record in rows if run.is_base]
        return max(scores), max(record.max_toxicity for _, record in rows)

    worst = sorted(records.items(), key=lambda item: before(item[1]), reverse=True)[:_WORST]
    return [(row_id, rows) for (row_id, _), rows in worst]


def _prompt(group: Group, row_id: RecordId, rows: list[tuple[Run, Record]]) -> dict[str, Any]:
    record = rows[0][1]
    prompt = record.messages[-1].content if record.messages else record.prompt
    table_rows = []
    searched = [row for row in rows if row[1].searched]
    # A search that repairs a text while writing it records only a part of the base text.
    if searched and not any(run.is_base for run, _ in rows):
        run, record_of_run = searched[0]
        worst = max(record_of_run.trials, key=lambda trial: trial.base_toxicity or 0.0)
        scores: Scores = {run.scorer: worst.base_toxicity}
        scores |= {judge: worst.own_score(judge) for judge in worst.step_judge_scores}
        note = "(cut off by the repair)" if worst.base_partial else ""
        texts = _texts(worst.base_text or "", note)
        table_rows.append(_row(_BEFORE, run, scores, texts, group.sources))
    for run, record_of_run in sorted(rows, key=lambda row: not row[0].is_base):
        worst = record_of_run.worst
        scores = {run.scorer: worst.toxicity, **worst.judge_scores}
        text, note = worst.text, ""
        if worst.refused:
            text, note = "", "(withheld)"
        elif worst.empty:  # no scorer scored it
            scores, note = {}, "(too short to score)" if text.strip() else ""
        elif worst.accepted is False and text.strip():
            note = "(not accepted)"
        name = _BEFORE if run.is_base else run.name
        table_rows.append(_row(name, run, scores, _texts(text, note), group.sources))
    return {"texts": _texts(prompt, f"(id {row_id})"), "id": row_id, "rows": table_rows}


def _texts(text: str, note: str = "") -> dict[str, str]:
    """Put a text on one line; returns it plain and masked, with a note."""
    text = " ".join(text.split())
    return {"text": text, "masked": masked(text), "note": note if text or note else "(empty)"}


def _row(
    method: str, run: Run, scores: Scores, texts: dict[str, str], sources: Sequence[str]
) -> dict[str, Any]:
    cells = []
    for source in sources:
        if (score := scores.get(source)) is None:
            cells.append({"shown": "-", "kind": ""})
        else:
            toxic = is_toxic(run, score)
            kind = "toxic" if toxic else "fine"
            cells.append({"shown": format_score(score, not toxic), "kind": kind})
    return {"method": method, "scores": cells, "texts": texts}


Pairs = list[tuple[str, str]]


def _settings(runs: Sequence[Run]) -> tuple[Pairs, list[tuple[str, Pairs]]]:
    """Return the settings that all runs share, and the folder and other settings of each run."""
    flat = [
        {
            ".".join(name): value
            if isinstance(value, str)
            else json.dumps(value, ensure_ascii=False)
            for name, value in leaves({"run": run.where, **run.config})
        }
        for run in runs
    ]
    common = [
        (key, value)
        for key, value in flat[0].items()
        if all(config.get(key) == value for config in flat)
    ]
    shared = {key for key, _ in common}
    by_run = [
        (run.name, [(key, value) for key, value in config.items() if key not in shared])
        for run, config in zip(runs, flat, strict=True)
    ]
    return common, by_run
