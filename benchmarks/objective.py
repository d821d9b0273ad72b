"""Search for text in the tone of an encyclopedia instead of clean text.

    python benchmarks/objective.py --data data/toxicity.jsonl.gz [--limit 200]

The scorer is a small classifier (logistic regression on words and pairs of words) that tells
beginnings of comments, toxic or not, from beginnings of Wikipedia sentences (those of BOLD); its
score, the probability of a comment, takes the place of toxicity. The judge is another kind of
classifier (on letters), trained on other texts. The search is unchanged. Prompts are the first of
RealToxicityPrompts-challenging. Runs are kept in `benchmarks/results/objective`. 200 prompts take
five minutes on one core.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline

from tide.core.errors import InputError, TideError
from tide.data.labelled import read_labelled
from tide.evaluation import Bars, evaluate, load_benchmark
from tide.evaluation.metrics import summarize
from tide.evaluation.reporting.tables import Column, Table, to_markdown

RESULTS = Path(__file__).resolve().parent / "results" / "objective"
METHODS = ("base", "tide", "random-walk", "shuffled", "resample", "resample:temperature=1.0")
# About as long as a completion of 20 tokens.
WORDS = 12
MOST = 20_000

Texts = tuple[list[str], list[bool]]


def halves(data: list[Path], seed: int = 0) -> tuple[Texts, Texts]:
    """Return two disjoint sets of beginnings, each half comments (True), half Wikipedia (False).

    Raises InputError if there are too few comments to learn from.
    """
    comments = [text.text for text in read_labelled(data)]
    formal = [row.text for row in load_benchmark("bold").rows]
    count = min(len(comments), len(formal), MOST) // 2
    if count == 0:
        raise InputError("--data: too few comments to learn from")
    generator = np.random.default_rng(seed)
    found: tuple[Texts, Texts] = ([], []), ([], [])
    for some, is_comment in ((comments, True), (formal, False)):
        drawn = generator.choice(len(some), 2 * count, replace=False)
        for lot, numbers in zip(found, (drawn[:count], drawn[count:]), strict=True):
            lot[0].extend(" ".join(some[number].split()[:WORDS]) for number in numbers)
            lot[1].extend([is_comment] * count)
    return found


def guide(fitted: Pipeline) -> Any:
    def comment(some: list[str]) -> list[float]:
        """Return the probability that each text is a comment."""
        return list(fitted.predict_proba(some)[:, 1])

    return comment


def judge(fitted: Pipeline) -> Any:
    def letters(some: list[str]) -> list[float]:
        """Return the probability that each text is a comment, by the classifier on letters."""
        return list(fitted.predict_proba(some)[:, 1])

    return letters


def main(
    data: Annotated[list[Path], typer.Option(help="Labelled comments, as for tide fit.")],
    limit: int = 200,
    out: Path = RESULTS,
) -> None:
    (rows, labels), (others, other_labels) = halves(data)
    words = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), _regression())
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
    letters = make_pipeline(characters, _regression())
    words.fit(rows, labels)
    letters.fit(others, other_labels)
    areas = [
        roc_auc_score(other_labels, words.predict_proba(others)[:, 1]),
        roc_auc_score(labels, letters.predict_proba(rows)[:, 1]),
    ]
    # An empty text must not count as an answer in the wanted tone.
    runs = evaluate(
        "rtp",
        METHODS,
        scorer=guide(words),
        judges=[judge(letters)],
        limit=limit,
        out=out,
        empty_policy="one",
        progress=Bars(),
    )
    shown = []
    for name, run in zip(METHODS, runs, strict=True):
        found = summarize(run)
        own, other = found.toxicity.values()
        fluency = next(iter(found.fluency.values()))
        costs = [found.averages.get(key) for key in ("evaluations", "unresolved", "empty")]
        ppl = [fluency.mean, fluency.mean_20, fluency.median]
        shown.append([name, own["each"], other["each"], *costs, *ppl])
    columns = [
        Column("method"),
        Column("comments", 3, interval=True),
        Column("by judge", 3, interval=True),
        *(Column("evals", 1), Column("unresolved", 3), Column("empty", 3)),
        *(Column(heading, 2) for heading in ("ppl", "of 20", "median")),
    ]
    notes = [
        "comments, by judge: share of completions that the scorer of the search, and the judge, "
        "take for a comment and not for a sentence of Wikipedia",
        "ppl: mean perplexity; of 20: of the completions of exactly 20 tokens",
        f"AUC on texts that they have not seen: {areas[0]:.3f} and {areas[1]:.3f}",
    ]
    print(to_markdown(Table("objective", f"rtp, {limit} prompts", columns, shown, notes)))


def _regression() -> LogisticRegression:
    return LogisticRegression(C=4.0, max_iter=1000)


if __name__ == "__main__":
    try:
        typer.run(main)
    except TideError as error:
        raise SystemExit(f"error: {error}") from None
