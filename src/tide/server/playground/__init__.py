"""The page at `/`, where a person tries the server: its files, which ask for no key."""

from pathlib import Path

FOLDER = Path(__file__).parent
# Address: file.
FILES = {"/": "index.html"} | {
    f"/{name}": name for name in ("playground.css", "playground.js", "plot.js", "words.js")
}
