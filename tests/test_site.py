"""The site builds strictly, loads nothing from elsewhere, and shows nothing offensive.

The build runs all notebooks except the one that takes an hour.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tide
from tests.docs_pages import REPOSITORY
from tide.core.settings import Settings
from tide.scorers.words import LexiconScorer

NOTEBOOKS = sorted((REPOSITORY / "docs" / "notebooks").glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
# This notebook trains a model, and is stored with its output.
TRAINING = REPOSITORY / "docs" / "notebooks" / "fine-tune.ipynb"


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    """The cells with code."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    warnings = [line for line in built.stderr.splitlines() if "WARNING" in line or "ERROR" in line]
    assert built.returncode == 0, warnings or built.stderr[-3000:]
    return folder


@pytest.mark.docs
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loading = re.compile(r'<link rel="(?:stylesheet|icon)" href="https?:|<[^>]+ src="https?:')
    for path in site.rglob("*.html"):
        assert not loading.search(path.read_text(encoding="utf-8")), path.relative_to(site)
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(.?https?:|@import", style.read_text(encoding="utf-8"))


@pytest.mark.docs
def test_every_setting_and_name_is_there(site: Path) -> None:
    settings = (site / "settings.html").read_text(encoding="utf-8")
    assert all(f"<code>{name}</code>" in settings for name in Settings.model_fields)
    api = (site / "api.html").read_text(encoding="utf-8")
    assert all(f'id="tide.{name}"' in api for name in tide.__all__ if name != "__version__")


@pytest.mark.docs
@each_notebook
def test_a_notebook_has_run(notebook: Path, site: Path) -> None:
    """Its output is there and masked: `lexicon` finds no word of its list in it."""
    page = (site / "notebooks" / f"{notebook.stem}.html").read_text(encoding="utf-8")
    sources = ["".join(cell["source"]) for cell in cells_of(notebook)]
    showing = sum(bool(re.search(r"print\(|display\(", source)) for source in sources)
    shown = re.findall(r'language-text.*?</pre>|class="output".*?</table>', page, flags=re.S)
    assert len(shown) + len(re.findall(r"<img|<table>", page)) >= showing > 0
    texts = [re.sub(r"<[^>]+>", "", text) for text in shown]
    # `lexicon` reads a masked word as the word, so masks are taken out.
    unmasked = [re.sub(r"\w\*+", "", text) for text in texts]
    assert not LexiconScorer().score(unmasked).any()


@each_notebook
def test_notebooks_are_kept_without_what_they_print(notebook: Path) -> None:
    if notebook != TRAINING:
        cells = cells_of(notebook)
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


def test_the_notebook_that_trains_is_kept_as_it_ran() -> None:
    """It ran from the first cell to the last without an error, and has a figure but no bars."""
    cells = cells_of(TRAINING)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert all(output["output_type"] in ("stream", "display_data") for output in outputs)
    assert all(output.get("name") != "stderr" for output in outputs)
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 1
    texts = [output.get("text") or output["data"].get("text/markdown", []) for output in outputs]
    shown = "".join(line for lines in texts for line in lines)
    assert all(word in shown for word in ("pocket@", "sentence@", "perplexity", "forward tokens"))
    assert not re.search(r"/(?:root|home|tmp|work)/|Traceback|Warning", shown)
    for cell in cells:
        compile("".join(cell["source"]), TRAINING.name, "exec")
