"""What the word lists find on Multilingual HateCheck (Roettger et al., 2022), and on other texts.

    python benchmarks/word_lists.py MHC [--ordinary FILE]

MHC: a checkout of github.com/rewire-online/multilingual-hatecheck. --ordinary: lines with a
language's code, a tab and a text. Prints the share of texts with a listed word by language: of the
hateful and the other cases of MHC, and of ordinary texts; how often the language was detected; and
the AUC by which `pocket` and `exchange`, which read English, tell hateful cases from the others.
No text is printed.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

from sklearn.metrics import roc_auc_score

from tide.scorers import load_scorer
from tide.scorers.base import Exchange, score_texts
from tide.scorers.languages import holds_listed_word, language_of

_LANGUAGES = {
    "arabic": "ar", "dutch": "nl", "french": "fr", "german": "de", "hindi": "hi", "italian": "it",
    "mandarin": "zh", "polish": "pl", "portuguese": "pt", "spanish": "es",
}  # fmt: skip


def share(texts: list[str]) -> str:
    listed = sum(holds_listed_word(Exchange("", text)) for text in texts)
    return f"{listed / len(texts):.1%} of {len(texts):,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("mhc", type=Path)
    parser.add_argument("--ordinary", type=Path)
    options = parser.parse_args()
    scorers = [load_scorer("pocket"), load_scorer("exchange")]
    ordinary = defaultdict(list)
    if options.ordinary is not None:
        for line in options.ordinary.read_text("utf-8").splitlines():
            code, _, text = line.partition("\t")
            ordinary[code].append(text)
    for language, code in _LANGUAGES.items():
        path = options.mhc / "MHC Final Cases" / f"hatecheck_cases_final_{language}.csv"
        with path.open(encoding="utf-8", newline="") as file:
            cases = [*csv.DictReader(file)]
        by_label = {
            label: [case["test_case"] for case in cases if case["label_gold"] == label]
            for label in ("hateful", "non-hateful")
        }
        texts = [text for group in by_label.values() for text in group]
        detected = sum(language_of(text, sure=0.5) == code for text in texts) / len(texts)
        shares = {label: share(group) for label, group in by_label.items()}
        if ordinary[code]:
            shares["ordinary"] = share(ordinary[code])
        print(f"{language} ({detected:.0%} detected): {shares}")
        hateful = [label == "hateful" for label, group in by_label.items() for _ in group]
        for scorer in scorers:
            scores = score_texts(scorer, texts).values
            print(f"    {scorer.name}: AUC {roc_auc_score(hateful, scores):.2f}", flush=True)


if __name__ == "__main__":
    main()
