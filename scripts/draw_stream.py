"""Draw a stream with its rewinds as an animation, docs/stream.gif.

    python scripts/draw_stream.py --model FOLDER [--prompt TEXT] [--seed N] [--out docs/stream.gif]

Runs the stream; the text up to each rewind is in its trace. Failed words are masked. Needs Pillow,
which matplotlib installs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import typer
from PIL import Image, ImageDraw, ImageFont

from tide import Detoxifier, Trial
from tide.core.results import format_score, mask

PROMPT = "I was so angry that I told him to"
WIDTH, HEIGHT, MARGIN, LINE, COLUMNS = 860, 250, 20, 26, 66
BACK, QUIET, PLAIN, RED, GREEN = "#101418", "#8b949e", "#e6edf3", "#ff7b72", "#7ee787"
WORD_MS, STOP_MS, END_MS = 110, 900, 3500

Frame = tuple[str, str, str, str]  # passed, pending and failed text; caption


def frames(trial: Trial) -> Iterator[tuple[Frame, int]]:
    """Yield the frames, word by word, each with its duration in milliseconds."""
    texts = [one.text for one in trial.trace]
    both = [len(shared(*pair)) for pair in pairwise(texts)]
    starts, kept = [0, *both], [*both, len(texts[-1])]
    for number, one in enumerate(trial.trace):
        for word in re.finditer(r"\s*\S+", one.text[starts[number] :]):
            end = starts[number] + word.end()
            passed = min(end, kept[number])
            yield (one.text[:passed], mask(one.text[passed:end]), "", ""), WORD_MS
        if number < len(both):
            before, failed = one.text[: kept[number]], mask(one.text[kept[number] :])
            caption = f"scores {format_score(one.toxicity, False)}: rewound, and the word is banned"
            yield (before, "", failed, caption), STOP_MS
            yield (before, "", "", "the model goes on from here"), STOP_MS
    yield (texts[-1], "", "", f"scores {format_score(trial.toxicity, True)}: accepted"), END_MS


def shared(one: str, other: str) -> str:
    """Return the whole words with which both texts begin."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    whole = re.match(r"(?:.*\s)?", "".join(a for a, _ in same), re.DOTALL)
    return whole[0].rstrip() if whole else ""


def drawn(prompt: str, frame: Frame, font: Any) -> Image.Image:
    passed, pending, failed, caption = frame
    image = Image.new("RGB", (WIDTH, HEIGHT), BACK)
    draw = ImageDraw.Draw(image)
    row = column = 0

    def write(text: str, colour: str) -> None:
        nonlocal row, column
        for found in re.findall(r"\s*\S+", re.sub(r"\s+", " ", text)):
            is_full = column + len(found) > COLUMNS
            word = found.lstrip() if is_full else found
            row, column = (row + 1, 0) if is_full else (row, column)
            place = (MARGIN + column * 12.05, MARGIN + LINE * row)
            draw.text(place, word, colour, font)
            if colour == RED:
                middle = place[1] + 11
                draw.line((place[0], middle, place[0] + len(word) * 12.05, middle), RED, 2)
            column += len(word)

    write(prompt, QUIET)
    write(passed, PLAIN)
    write(pending, QUIET)
    write(failed, RED)
    draw.text((MARGIN, HEIGHT - 66), "the client sees the white text alone", QUIET, font)
    draw.text((MARGIN, HEIGHT - 38), caption, RED if failed else GREEN, font)
    return image


def main(
    model: Annotated[str, typer.Option(help="A folder or a hub id.")],
    prompt: str = PROMPT,
    seed: int = 0,
    tokens: int = 40,
    out: Annotated[Path, typer.Option(help="A .gif file.")] = Path("docs/stream.gif"),
) -> None:
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    font = ImageFont.truetype(str(fonts / "DejaVuSansMono.ttf"), 20)
    with (
        Detoxifier(model, preset="backtrack", temperature=0.7, max_new_tokens=tokens) as detox,
        detox.stream(prompt, seed=seed) as stream,
    ):
        for _ in stream:
            pass
    found = list(frames(stream.result.best))
    images = [drawn(prompt, frame, font).quantize(32) for frame, _ in found]
    times = [time for _, time in found]
    images[0].save(out, save_all=True, append_images=images[1:], duration=times, loop=0)
    print(f"{out}: {len(images)} pictures, {out.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    typer.run(main)
