"""The files of the playground, the page at `/`. They are served without a key."""

from pathlib import Path

FOLDER = Path(__file__).parent
# Files by URL path.
FILES = {"/": "index.html"} | {
    f"/{name}": name for name in ("playground.css", "playground.js", "plot.js", "words.js")
}
