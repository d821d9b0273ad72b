"""What each detoxification system needs: the questions of the paper's table of properties."""

from __future__ import annotations

from tide.evaluation.printed import rows_of
from tide.evaluation.reporting.tables import Column, Table


def properties_table() -> Table:
    """A row a system, from `numbers/systems.csv`.

    learns: what is trained or fitted before. gradients, second: whether it needs gradients, or a
    second model, while it writes. reaches: the deepest that it must get at, of text, embeddings,
    logits, inside and weights. here: its name in `--methods`.
    """
    rows = list(rows_of("systems"))
    notes = [
        "learns: before it can be used; gradients, second (model): while it writes; reaches: the "
        "deepest that it must get at, of text, embeddings, logits, inside and weights",
        "ADLM is not here: its authors' repository (jin8/ADLM) holds a README and no code",
        "our reading of each system's code; the paper's Table 1 asks the like",
    ]
    columns = [Column(name) for name in rows[0]]
    cells = [list(row.values()) for row in rows]
    return Table("paper-properties", "What each system needs", columns, cells, notes)
