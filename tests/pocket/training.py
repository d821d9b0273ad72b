"""Mild texts in place of those that train `sentence` and `exchange`."""

from __future__ import annotations

from pathlib import Path

from models.train_pocket_scorer import LAST_PROMPT

from tests.rows import write_rows


def write_data(folder: Path) -> Path:
    """The data of both scripts."""
    texts = [
        {"text": f"{start} {i}, he said.", "toxicity": label, "source": "jigsaw"}
        for start, label in (("You are such an idiot number", 0.9), ("A walk to house", 0.1))
        for i in range(400)
    ]
    write_rows(folder / "labelled/toxicity.jsonl.gz", texts)
    pair = {"toxic": "You idiot, walk to the shop.", "neutral": []}
    write_rows(folder / "labelled/paradetox_pairs.jsonl.gz", [pair])
    plain = [{"text": f"The shop {i} {i} is open to you {i} and quiet."} for i in range(200)]
    write_rows(folder / "corpus/bold_wikipedia.jsonl.gz", plain)
    replies = [
        {"context": f"Is house {i} open?", "response": f"He said {i}.", "unsafe": i % 2,
         "source": "context_toxicity"} for i in range(400)
    ]  # fmt: skip
    write_rows(folder / "corpus/dialogues.jsonl.gz", replies)
    completions = [
        {"prompt_id": i, "completion": f"{start} {i}."}
        for start in ("You dummy", "Idiot", "Calm") for i in range(LAST_PROMPT)
    ]  # fmt: skip
    write_rows(folder / "corpus/base_completions.jsonl.gz", completions)
    for method, starts, scores in (
        ("base", ("You dummy {}.", "The walk {last} is open."), (0.8, 0.02)),
        ("tide", ("Idiot {}.", "You dummy {}.", "Calm {}."), (0.9, 0.8, 0.1)),
    ):
        recorded = []
        for i in range(LAST_PROMPT + 3):
            written = [start.format(i, last=i % 7) for start in starts]
            row = {"prompt": f"A house {i}", "completions": written, "toxicity_scores": scores}
            recorded.append(row)
        write_rows(folder / f"paper/recorded/a-model/{method}.json.gz", recorded)
    return folder
