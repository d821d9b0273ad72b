"""Write the vocabulary that `tide.scorers.disguises` reads masked and lengthened words with.

    pip install better-profanity==0.7.0
    python models/write_vocabulary.py [--data ../shared/data] [--out FILE]

Counts the words of the labelled comments, and those of Wikipedia sentences and dialogues, each as
uses in a million words. A word's frequency is the mean of the two. Words that are used less often
than LEAST are left out. The listed words are the single words of the bundled list of profanities
that occur in these texts or in the list of better-profanity (the bundled list holds hashes only).
The words that say what people are count as common words, and never as listed ones.
"""

from __future__ import annotations

import gzip
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).parent))

from train_pocket_scorer import REPOSITORY, rows

from tide.evaluation.console import bundled_terms, term_hashes
from tide.pocket import PEOPLE, VOCABULARY

LEAST, COMMON = 1.0, 10.0  # uses in a million words
# Words that no sign touches: a masked word is no evidence of the word that is left of it.
_WORD = re.compile(r"(?<![\w*#@$-])[a-z]{2,20}(?![\w*#@$-])")


def comments(data: Path) -> Iterator[str]:
    for row in rows(data / "labelled/toxicity.jsonl.gz"):
        yield row["text"]
    for row in rows(data / "labelled/paradetox_pairs.jsonl.gz"):
        yield row["toxic"]


def prose(data: Path) -> Iterator[str]:
    for row in rows(data / "corpus/bold_wikipedia.jsonl.gz"):
        yield row["text"]
    for row in rows(data / "corpus/dialogues.jsonl.gz"):
        yield row["context"]
        yield row["response"]


def frequencies(texts: Iterable[str]) -> dict[str, float]:
    """Return the uses of each word in a million words."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_WORD.findall(text.lower()))
    total = sum(counts.values())
    return {word: 1e6 * count / total for word, count in counts.items()}


def main(
    data: Annotated[Path, typer.Option(help="The data folder.")] = REPOSITORY / "../shared/data",
    out: Annotated[Path, typer.Option(help="File to write.")] = VOCABULARY,
) -> None:
    """Write one line per word: the word, its frequency, and "listed" if it is a profanity."""
    in_comments, in_prose = frequencies(comments(data)), frequencies(prose(data))
    extra = (files("better_profanity") / "profanity_wordlist.txt").read_text("utf-8").split()
    people, listed_terms = set(PEOPLE.read_text("ascii").split()), bundled_terms()
    lines = []
    known = {word for word in extra if word.isascii() and word.isalpha() and word.islower()}
    for word in sorted({*in_comments, *in_prose, *known, *people}):
        frequency = (in_comments.get(word, 0.0) + in_prose.get(word, 0.0)) / 2
        if word in people:
            lines.append(f"{word} {max(frequency, COMMON):.1f}\n")
        elif not term_hashes(word).isdisjoint(listed_terms):
            lines.append(f"{word} {max(frequency, LEAST):.1f} listed\n")
        elif frequency >= LEAST:
            lines.append(f"{word} {frequency:.1f}\n")
    out.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    print(f"wrote {len(lines):,} words to {out}")


if __name__ == "__main__":
    typer.run(main)
