"""A folder in which the commands of the pages run, with mild stand-ins for the data they name."""

from __future__ import annotations

import runpy
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.docs_pages import REPOSITORY
from tests.models import save_causal_lm
from tests.rows import write_rows
from tide.cli import main

_SUBJECTS = ("The waiter", "My neighbour", "Our coach", "The driver", "Your cousin", "The clerk")
_PLACES = ("at the station", "in the garden", "on the phone", "at work", "in the shop", "at home")
_KIND, _RUDE = ("kind", "patient", "clever"), ("stupid", "worthless", "pathetic")


def enter(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to the folder, which is made if it is missing; returns the folder."""
    here = root / "here"
    if not here.exists():
        _prepare(here)
    monkeypatch.chdir(here)
    monkeypatch.setenv("TIDE_CACHE", str(root / "scores.sqlite3"))
    monkeypatch.delenv("TIDE_DATA", raising=False)
    return here


def _prepare(here: Path) -> None:
    """Make the folder, with the data that `tide data get` would fetch."""
    data = here / "data"
    here.mkdir()
    prompts = (REPOSITORY / "examples" / "prompts.txt").read_text(encoding="utf-8").splitlines()
    numbered = [{"id": i, "prompt": prompt} for i, prompt in enumerate(prompts)]
    write_rows(here / "prompts.jsonl", numbered)
    write_rows(here / "labels.jsonl", _labelled())
    shutil.copytree(REPOSITORY / "docs" / "results", here / "docs" / "results")
    for name in ("artefacts", "examples", "reproduction"):
        shutil.copytree(REPOSITORY / name, here / name)
    scripts = [*(REPOSITORY / "benchmarks").glob("*.py"), REPOSITORY / "models" / "probes.py"]
    for script in scripts:
        folder = here / script.parent.name
        folder.mkdir(exist_ok=True)
        shutil.copy(script, folder)
    save_causal_lm(here / "my-model", "llama")
    chats = [{"messages": [{"role": "user", "content": place}]} for place in _PLACES]
    write_rows(here / "chats.jsonl", chats)

    write_rows(data / "rtp_challenging.jsonl", numbered[:8])
    write_rows(data / "attaq.jsonl", [{**r, "label": "a"} for r in numbered[:2]])
    write_rows(data / "bold.jsonl.gz", [{**r, "domain": "a"} for r in numbered[-2:]])
    for name in ("toxicity", "civil_comments"):
        write_rows(data / f"{name}.jsonl.gz", _labelled())
    pairs = zip(_sentences(_RUDE), _sentences(_KIND), strict=True)
    rows = [{"toxic": toxic, "neutral": [neutral]} for toxic, neutral in pairs]
    write_rows(data / "paradetox_pairs.jsonl.gz", rows)
    _paper(data / "paper")


def _sentences(words: tuple[str, ...]) -> list[str]:
    return [
        f"{subject} we met {where} is a {word} person."
        for subject in _SUBJECTS
        for where in _PLACES
        for word in words
    ]


def _labelled() -> list[dict[str, Any]]:
    both = zip(_sentences(_RUDE), _sentences(_KIND), strict=True)
    texts = [text for pair in both for text in pair]
    return [
        {"text": text, "toxicity": float(i % 2 == 0), "source": "ab"[i % 3 == 0]}
        for i, text in enumerate(texts)
    ]


def _paper(folder: Path) -> None:
    """The recorded files of each model that the pages name."""
    rude, kind = _sentences(_RUDE), _sentences(_KIND)
    search = {"num_iter_steps": [2, 1], "cosine_sims": [0.7, 0.9], "final_prompt": "So it was"}
    for model in ("gpt2-large", "qwen3-4b", "gemma-2-2b", "llama-3.1-8b"):
        for name in ("base", "rad-aisteer-10", "rad-aisteer-50", "rad-aisteer-75", "tide"):
            records = [
                {
                    "id": i,
                    "prompt": "So it was said that",
                    "completions": [rude[i], kind[i]],
                    "toxicity_scores": [0.9 - i / 1000, 0.1 + i / 1000],
                    **(search if name == "tide" else {}),
                }
                for i in range(40)
            ]
            write_rows(folder / "recorded" / model / f"{name}.json.gz", records)


# Options that make a script short enough for a test.
SMALL = {
    "gradient.py": ["--limit", "1", "--samples", "16"],
    "landscape.py": ["--grid", "3"],
}


def run_command(command: list[str], where: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command in this process, since another would import torch anew."""
    program, *arguments = command
    code: object = None
    try:
        with monkeypatch.context() as patch:
            if program == "tide":
                patch.setattr(sys, "argv", ["tide", *shorter(arguments)])
                main()
            elif program == "python":
                script = Path(arguments[0])
                patch.setattr(sys, "argv", [*arguments, *SMALL.get(script.name, [])])
                patch.syspath_prepend(str(script.parent.resolve()))
                with warnings.catch_warnings():
                    warnings.simplefilter("default")  # as in a process of its own
                    runpy.run_path(str(script), run_name="__main__")
            else:
                pytest.fail(f"{where}: {program} is not run here; say why above the block")
    except SystemExit as ended:
        code = ended.code
    assert not code, f"{where}: {command} exits with {code}"


def shorter(arguments: list[str]) -> list[str]:
    """The same command with smaller numbers."""
    # The judge's package is installed by hand.
    short = [a.replace("benchmarks/lstm_judge.py:LSTMJudge", "lexicon") for a in arguments]
    for option in {"--trials", "--limit"} & set(short):
        index = short.index(option) + 1
        # Keep the order of numbers: some pages extend a finished run with a larger number.
        number = int(short[index]) // (50 if option == "--limit" else 1)
        short[index] = str(min(number, 4))
    if short[0] == "fit":
        short += ["--steps", "2", "--max-texts", "80"]
    return short
