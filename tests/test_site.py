"""The site builds strictly, loads nothing from elsewhere, and shows nothing offensive.

The build runs all notebooks except the one that takes an hour.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tide
from tests.docs_pages import REPOSITORY
from tide.core.settings import Settings
from tide.scorers.words import LexiconScorer

NOTEBOOKS = sorted((REPOSITORY / "docs" / "notebooks").glob("*.ipynb"))
# This notebook trains a model, and is stored with its output.
TRAINING = REPOSITORY / "docs" / "notebooks" / "fine-tune.ipynb"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
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
    assert {
        name for name in Settings.model_fields if f"<code>{name}</code>" not in settings
    } == set()
    api = (site / "api.html").read_text(encoding="utf-8")
    assert all(f'id="tide.{name}"' in api for name in tide.__all__ if name != "__version__")


@pytest.mark.docs
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_run(notebook: Path, site: Path) -> None:
    """Its output is there and masked: `lexicon` finds no word of its list in it."""
    page = (site / "notebooks" / f"{notebook.stem}.html").read_text(encoding="utf-8")
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    showing = sum(bool(re.search(r"print\(|display\(", "".join(c["source"]))) for c in cells)
    shown = re.findall(r'language-text.*?</pre>|class="output".*?</table>', page, flags=re.S)
    assert len(shown) + len(re.findall(r"<img|<table>", page)) >= showing > 0
    texts = [re.sub(r"<[^>]+>", "", text) for text in shown]
    # `lexicon` reads a masked word as the word, so masks are taken out.
    unmasked = [re.sub(r"\w\*+", "", text) for text in texts]
    assert not LexiconScorer().score(unmasked).any()


@pytest.mark.parametrize(
    "notebook", [path for path in NOTEBOOKS if path != TRAINING], ids=lambda path: path.stem
)
def test_notebooks_are_kept_without_what_they_print(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_the_notebook_that_trains_is_kept_as_it_ran() -> None:
    """It ran from the first cell to the last without an error, and has a figure but no bars."""
    cells = json.loads(TRAINING.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert all(cell_output["output_type"] in ("stream", "display_data") for cell_output in outputs)
    assert all(cell_output.get("name") != "stderr" for cell_output in outputs)
    assert sum("image/png" in cell_output.get("data", {}) for cell_output in outputs) == 1
    shown = "".join(
        line
        for cell_output in outputs
        for line in cell_output.get("text", cell_output.get("data", {}).get("text/markdown", []))
    )
    assert all(word in shown for word in ("pocket@", "sentence@", "perplexity", "forward tokens"))
    assert not re.search(r"/(?:root|home|tmp|work)/|Traceback|Warning", shown)
    for cell in code:
        compile("".join(cell["source"]), TRAINING.name, "exec")
