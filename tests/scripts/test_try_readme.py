"""The installation comes first, and what the page does not run is left out."""

from __future__ import annotations

from scripts.try_readme import INSTALLATION, followed

from tests.docs_pages import REPOSITORY


def test_the_blocks_that_are_followed() -> None:
    found = followed(REPOSITORY / "README.md")
    assert INSTALLATION in found[0].text
    assert sum("pip install" in block.text for block in found) == 1
    assert any("tide run" in block.text for block in found)
    assert not any("tide serve" in block.text for block in found)
