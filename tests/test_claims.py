"""Each claim of the paper has a command in docs/paper.md, and the command runs.

Some claims read the run folder of an earlier one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs_pages import REPOSITORY, Block, Claim, claims, commands
from tests.docs_world import enter, run_command

PAPER = REPOSITORY / "docs" / "paper.md"
CLAIMS = "## Every table, figure and claim"


def test_each_claim_of_the_paper_has_a_command_and_a_word() -> None:
    listed = claims(PAPER, CLAIMS)
    assert len(listed) >= 25
    for claim in listed:
        word, _, reason = claim.verdict.partition(" (")
        assert word in ("agrees", "differs", "not measured"), claim
        assert word == "agrees" or reason.endswith(")"), claim
        assert claim.commands or word == "not measured", claim
        assert claim.output, claim


# Stand-ins for models and scorers that would have to be downloaded.
STAND_INS = {
    "openai-community/gpt2-large": "my-model",
    "google/gemma-2-2b": "my-model",
    "auto": "my-model",
    "global": "my-model",
    "hf:unitary/toxic-bert#toxic": "lexicon",
}


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """A folder for the commands of all claims, and the commands that were already run in it."""
    return tmp_path_factory.mktemp("claims"), set()


@pytest.mark.docs
@pytest.mark.parametrize("claim", claims(PAPER, CLAIMS), ids=lambda claim: claim.name)
def test_the_commands_of_a_claim_run(
    claim: Claim, reproduced: tuple[Path, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command runs once, with stand-ins for downloads; later claims use earlier output."""
    root, done = reproduced
    enter(root, monkeypatch)
    replaced = False
    for command in claim.commands:
        (expanded,) = commands(Block(PAPER, 0, "sh", f"{command}\n"), root)
        words = [STAND_INS.get(word, word) for word in expanded]
        replaced |= words != expanded
        if command not in done:
            run_command(words, claim.name, monkeypatch)
        done.add(command)
    if claim.verdict.startswith("not measured"):
        assert replaced, f"{claim.name}: nothing is missing for it"
