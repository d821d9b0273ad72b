"""Each claim of the paper has a command on docs/reproduction.md, and its command runs.

A file of their own, since one process has to run them in the order of the page: the run folder of
one claim is read by another.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.docs_pages import REPOSITORY, Claim, claims
from tests.docs_world import prepare, run_command

REPRODUCTION = REPOSITORY / "docs" / "reproduction.md"
CLAIMS = "## Every table, figure and claim"


def test_each_claim_of_the_paper_has_a_command_and_a_word() -> None:
    found = claims(REPRODUCTION, CLAIMS)
    assert len(found) >= 25
    for claim in found:
        word, _, reason = claim.verdict.partition(" (")
        assert word in ("agrees", "differs", "not measured"), claim
        assert word == "agrees" or reason.endswith(")"), claim
        assert claim.commands or word == "not measured", claim
        assert claim.output, claim


# In the place of what is not here: models of the hub, and a scorer with its weights.
STAND_INS = {
    "openai-community/gpt2-large": "my-model",
    "google/gemma-2-2b": "my-model",
    "auto": "my-model",
    "global": "my-model",
    "detoxify:original": "lexicon",
}


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """A folder for the commands of all claims, and those that were run in it."""
    return prepare(tmp_path_factory.mktemp("claims")), set()


@pytest.mark.docs
@pytest.mark.parametrize("claim", claims(REPRODUCTION, CLAIMS), ids=lambda claim: claim.name)
def test_the_commands_of_a_claim_run(
    claim: Claim, reproduced: tuple[Path, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins for what is not here; what one claim makes, later ones use. Each once."""
    here, done = reproduced
    monkeypatch.chdir(here)
    monkeypatch.setenv("TIDE_CACHE", str(here.parent / "scores.sqlite3"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("TIDE_DATA", raising=False)
    replaced = False
    for command in claim.commands:
        words = [STAND_INS.get(word, word) for word in shlex.split(command)]
        replaced |= words != shlex.split(command)
        if command not in done:
            run_command(words, claim.name, monkeypatch)
        done.add(command)
    if claim.verdict.startswith("not measured"):
        assert replaced, f"{claim.name}: nothing is missing for it"
