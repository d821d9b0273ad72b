"""Make the bundled word lists for languages that the scorers do not read.

    python models/make_word_lists.py LISTS [--out FILE]

LISTS: a checkout of LDNOOBW/List-of-Dirty-Naughty-Obscene-and-Otherwise-Bad-Words (CC BY 4.0), or
the unpacked npm package `naughty-words`: one file for each language, `de` or `de.json`.

The result holds hashes instead of the words. Left out are the words in `ordinary_words.txt`, also
hashed: ordinary words, words of medicine and law, surnames, and single characters, which a reader
of these lists found in them. Left out are English, which the scorers read, and Klingon, which no
language detection knows; the French of Quebec is added to French.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tide.pocket import WORD_LISTS
from tide.scorers.languages import FIRST, term_hash, tokens_of

_LANGUAGES = (
    "ar cs da de eo es fa fi fil fr fr-CA-u-sd-caqc hi hu it ja kab ko nl no pl pt ru sv th tr zh"
)
_JOINED = {"fr-CA-u-sd-caqc": "fr", "fil": "tl"}  # names of the language detection
_ORDINARY = Path(__file__).with_name("ordinary_words.txt")


def read_lists(folder: Path) -> dict[str, list[str]]:
    """Return the terms of each language."""
    lists: dict[str, list[str]] = {}
    for code in _LANGUAGES.split():
        plain, as_json = folder / code, folder / f"{code}.json"
        if plain.is_file():
            terms = plain.read_text("utf-8").splitlines()
        else:
            terms = json.loads(as_json.read_text("utf-8"))
        lists.setdefault(_JOINED.get(code, code), []).extend(terms)
    return lists


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("lists", type=Path)
    parser.add_argument("--out", type=Path, default=WORD_LISTS)
    options = parser.parse_args()
    ordinary = {int(line, 16) for line in _ORDINARY.read_text("ascii").split()}
    tensors: dict[str, np.ndarray] = {}
    first: set[int] = set()
    for language, terms in read_lists(options.lists).items():
        words = [tokens_of(term) for term in terms]
        used = {term_hash(term): term for term in words if len("".join(term)) > 1}
        used = {number: term for number, term in used.items() if number not in ordinary}
        first |= {term_hash(term[:1]) for term in used.values()}
        tensors[language] = np.array(sorted(used), dtype=np.uint64)
        print(f"{language}: {len(used)} of {len(terms)} terms")
    tensors[FIRST] = np.array(sorted(first), dtype=np.uint64)
    save_file(tensors, options.out)


if __name__ == "__main__":
    main()
