"""MkDocs hooks that prepare the pages (mkdocs.yml); `make site` builds the site.

The pages are written for GitHub, where links lead anywhere in the repository. So README.md becomes
the first page of the site, files outside of docs/ that pages link to are added, and links are
rewritten to their places in the site. Notebooks are run (except one that takes an hour) and become
pages with their output.
"""

from __future__ import annotations

import inspect
import os
import re
import tempfile
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import nbclient
import nbformat
import typer
from markdown.extensions.toc import unique
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel
from pymdownx.slugs import slugify

from tide.cli.app import app
from tide.core.settings import Settings
from tide.plugins.registry import Registry

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / "docs"
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
_SETTINGS = "<!-- every setting -->"
_serving = False


def on_startup(command: str, dirty: bool) -> None:
    """Show notebooks without their output in `mkdocs serve`, which builds at each change."""
    global _serving  # noqa: PLW0603
    _serving = command == "serve"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README.md, linked files outside of docs/ (and files that they link), and notebooks."""
    seen = {REPOSITORY / "README.md", *DOCS.rglob("*.md")}
    waiting = sorted(seen)
    while waiting:
        page = waiting.pop()
        for target, _ in _LINK.findall(page.read_text(encoding="utf-8")):
            path = (page.parent / target).resolve()
            if path not in seen and path.is_file() and path.is_relative_to(REPOSITORY):
                seen.add(path)
                waiting += [path] if path.suffix == ".md" else []
    for path in sorted(seen):
        if not path.is_relative_to(DOCS):
            files.append(File.generated(config, _place(path), abs_src_path=str(path)))
    for path in sorted(DOCS.glob("notebooks/*.ipynb")):
        for place, content in _pages_of(path).items():
            files.append(File.generated(config, place, content=content))
    for name, place in (("site.css", "site.css"), ("site_worker.js", "iframe-worker.js")):
        path = REPOSITORY / "scripts" / name
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links for the site, and insert the tables of settings."""
    source = _source(page.file)
    here = PurePosixPath(page.file.src_uri).parent

    def rewritten(link: re.Match[str]) -> str:
        target = (source.parent / link[1]).resolve()
        if not target.is_file():  # a URL
            return link[0]
        return os.path.relpath(_place(target), here) + (link[2] or "")

    markdown = _LINK.sub(rewritten, markdown)
    if _SETTINGS in markdown:
        listed = list(_every_setting())
        lines = [*_index(listed), "\n<div class='settings' markdown>\n", *listed, "\n</div>"]
        markdown = markdown.replace(_SETTINGS, "\n".join(lines))
    return markdown


def _source(file: File) -> Path:
    """Return the file of the repository that a page of the site is made from."""
    if file.src_uri == "index.md":
        return REPOSITORY / "README.md"
    if file.src_uri.startswith("notebooks/"):
        return (DOCS / file.src_uri).with_suffix(".ipynb")
    return Path(file.abs_src_path or REPOSITORY)


def _place(path: Path) -> str:
    """Return the place of a repository file in the site."""
    if path == REPOSITORY / "README.md":
        return "index.md"
    inside = path.relative_to(DOCS if path.is_relative_to(DOCS) else REPOSITORY)
    return inside.with_suffix(".md" if path.suffix == ".ipynb" else path.suffix).as_posix()


def executed(path: Path) -> Any:
    """Run a notebook in an empty folder. Raises nbclient's error if a cell fails.

    The notebook that takes an hour is saved with its output, and is not run.
    """
    notebook = nbformat.read(path, as_version=4)
    if _serving or any(cell.get("outputs") for cell in notebook.cells):
        return notebook
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(
            notebook, timeout=300, coalesce_streams=True, resources={"metadata": {"path": folder}}
        ).execute()
    return notebook


def _pages_of(path: Path) -> dict[str, str | bytes]:
    """Return a notebook's files in the site, by place: pictures, a page of cells and outputs."""
    made: dict[str, str | bytes] = {}
    parts = []
    for cell in executed(path).cells:
        is_code = cell.cell_type == "code"
        parts.append(f"```python\n{cell.source}\n```" if is_code else cell.source)
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if output.get("name") == "stderr":  # loading bars
                continue
            if "image/png" in data:
                name = f"{path.stem}-{len(made)}.png"
                made[f"notebooks/{name}"] = b64decode(data["image/png"])
                parts.append(f"![figure drawn by the cell]({name})")
            elif "text/markdown" in data:
                parts.append(data["text/markdown"])
            elif "text/html" in data:
                html = "".join(data["text/html"].splitlines())
                parts.append(f'<div class="output">{html}</div>')
            else:
                parts.append(f"```text\n{data['text/plain'].rstrip()}\n```")
    parts.append(f'<a href="{path.name}" download>This page as a notebook</a>')
    return {**made, _place(path): "\n\n".join(parts)}


def _index(lines: list[str]) -> Iterator[str]:
    """Yield links to the sections and subsections in the lines of a page."""
    used: set[str] = set()
    yield "<div class='index' markdown>"
    for line in lines:
        level, _, title = line.strip().partition("\n")[0].partition(" ")
        if level not in ("##", "###"):
            continue
        place = unique(slugify(case="lower")(title.replace("`", ""), "-"), used)
        yield f"\n**[{title}](#{place})**\n" if level == "##" else f"- [{title}](#{place})"
    yield "\n</div>"


def _every_setting() -> Iterator[str]:
    from tide.baselines import REGISTRY as BASELINES  # noqa: PLC0415  (slow import)
    from tide.engines import REGISTRY as ENGINES  # noqa: PLC0415
    from tide.plugins.specs import WRAPPERS  # noqa: PLC0415
    from tide.scorers import REGISTRY as SCORERS  # noqa: PLC0415
    from tide.search import REGISTRY as STRATEGIES  # noqa: PLC0415

    yield "\n## Settings of every run\n"
    yield from _table(Settings)
    for title, registry in (
        ("Strategies", STRATEGIES),
        ("Scorers", SCORERS),
        ("Other systems", BASELINES),
    ):
        yield f"\n## {title}\n"
        for name in registry.names():
            found = registry.load(name)
            yield f"\n### `{WRAPPERS.get(name, name)}`\n\n{_first(found)}\n"
            if (options := getattr(found, "options_class", None)) and options.model_fields:
                yield from _table(options)
    yield "\n## Engines\n"
    yield from _engines(ENGINES)
    yield "\n## Commands\n"
    yield from _commands(typer.main.get_command(app), "tide")


def _table(model: type[BaseModel]) -> Iterator[str]:
    yield "| setting | default | range | what it does |\n| --- | --- | --- | --- |"
    schema = model.model_json_schema(by_alias=True)
    # A model with required fields cannot be instantiated to read its defaults.
    defaults = {} if "required" in schema else model().model_dump(by_alias=True)
    for name, field in schema["properties"].items():
        kinds = field.get("anyOf", [field])
        ranges = ", ".join(filter(None, map(_range, kinds)))
        default = _value(defaults[name]) if defaults else ""
        yield f"| `{name}` | {default} | {ranges} | {_cell(field.get('description', ''))} |"


def _range(kind: dict[str, Any]) -> str:
    """Describe the range in the JSON schema of a value."""
    if kind.get("type") == "null":
        return "none"
    if "enum" in kind:
        return ", ".join(f"`{one}`" for one in kind["enum"])
    if kind.get("type") == "array":
        return f"up to {kind['maxItems']} texts" if "maxItems" in kind else "a list"
    if kind.get("type") == "boolean":
        return "true or false"
    bounds = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most"}
    bounds["exclusiveMaximum"] = "below"
    return ", ".join(
        f"{words} {int(kind[name]) if kind[name] >= 1 else kind[name]:,}"
        for name, words in bounds.items()
        if name in kind
    )


def _value(value: Any) -> str:
    if value is None or value in ([], ()):
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _engines(registry: Registry) -> Iterator[str]:
    for name in registry.names():
        found = registry.load(name)
        yield f"\n### `{name}`\n\n{_first(found)}\n\n| option | default |\n| --- | --- |"
        for parameter in list(inspect.signature(found).parameters.values())[1:]:
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                yield f"| `{parameter.name}` | {_value(parameter.default)} |"


def _commands(command: Any, name: str) -> Iterator[str]:
    """Yield the options of each command that are not settings of every run."""
    for child, found in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(found, f"{name} {child}")
    if hasattr(command, "commands"):
        return
    yield f"\n### `{name}`\n\n{_cell((command.help or '').partition(chr(10) * 2)[0])}\n"
    rows = [one for one in command.params if one.name not in Settings.model_fields]
    if len(rows) < len(command.params):
        yield "It also takes the settings of every run, as options: `--num-samples 16`.\n"
    yield "| option | default | what it does |\n| --- | --- | --- |"
    for one in rows:
        flags = ", ".join(f"`{flag}`" for flag in one.opts if flag.startswith("-"))
        default = "" if one.required else _value(one.default)
        description = _cell(getattr(one, "help", None) or "")
        yield f"| {flags or f'`{one.name}`'} | {default} | {description} |"


def _first(found: Any) -> str:
    return " ".join(inspect.cleandoc(found.__doc__ or "").partition("\n\n")[0].split())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
