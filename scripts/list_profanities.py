"""Make the bundled list of profanities: hashes of the terms in Surge AI's list (MIT).

git clone https://github.com/surge-ai/profanity
python scripts/list_profanities.py profanity/profanity_en.csv
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import typer
from safetensors.numpy import save_file

from tide.pocket import PROFANITIES
from tide.scorers.words import LISTED, listed_hashes


def main(
    terms: Annotated[Path, typer.Argument(help="A CSV file with a column `text`.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = PROFANITIES,
) -> None:
    with terms.open(newline="", encoding="utf-8") as file:
        hashes = listed_hashes(row["text"] for row in csv.DictReader(file))
    save_file({LISTED: hashes}, out)
    print(f"{out}: {len(hashes):,} terms")


if __name__ == "__main__":
    typer.run(main)
