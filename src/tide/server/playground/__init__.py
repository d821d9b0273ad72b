"""The playground, the page at `/`: its files, which are served without a key."""

from pathlib import Path

FOLDER = Path(__file__).parent
# URL path to file.
FILES = {"/": "index.html"} | {
    f"/{name}": name for name in ("playground.css", "playground.js", "plot.js", "words.js")
}
