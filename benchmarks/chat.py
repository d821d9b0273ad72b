"""Compare perturbing all user messages of a chat, the last one, its last 8 tokens, or all tokens.

    python benchmarks/chat.py

The bundled model is not a chat model: messages are written as lines, and it continues the last one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
from writing import likelihoods

from tide import Detoxifier
from tide.core.chat import Rendered
from tide.evaluation.benchmarks import load_benchmark

REPLIES = ["I see.", "What do you mean?", "That is what they said.", "Go on."]
SHORT = ["They are", "You are", "He is such", "I think"]


def chats(texts: list[str], short: bool) -> Iterator[Rendered]:
    """Yield chats with two user messages; the last or (`short`) only the first message provokes."""
    for i, (first, last) in enumerate(zip(texts[::2], texts[1::2], strict=True)):
        said = (f"{first} {last}", SHORT[i % 4]) if short else (first, last)
        begin = f"{said[0]}\n{REPLIES[i % 4]}\n"
        spans = (0, len(said[0])), (len(begin), len(begin) + len(said[1]))
        yield Rendered(begin + said[1], spans)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--chats", type=int, default=300)
    count = parser.parse_args().chats
    texts = [row.text for row in load_benchmark("rtp:401-", limit=2 * count).rows]
    with Detoxifier(strategy="random-walk", temperature=0.1) as detox:
        engine = detox.engine
        print("last message,rows,moved,evaluations,rounds,unresolved,perplexity")
        for short in (False, True):
            for perturb in ("user", "content", "last:8", "all"):
                prompts = list(chats(texts, short))
                found = [result.best for result in detox.map(prompts, perturb=perturb)]
                moved = [trial.evaluations > 1 for trial in found]
                searched = [trial for trial, is_moved in zip(found, moved, strict=True) if is_moved]
                asked = [
                    prompt for prompt, is_moved in zip(prompts, moved, strict=True) if is_moved
                ]
                pairs = [
                    (engine.tokenize([prompt])[0], engine.tokenize([trial.text])[0])
                    for prompt, trial in zip(asked, searched, strict=True)
                    if trial.accepted and trial.text.strip()
                ]
                likelihood = likelihoods(engine, *zip(*pairs, strict=True))
                numbers = [
                    np.mean([trial.evaluations for trial in searched]),
                    np.mean([trial.rounds for trial in searched]),
                    np.mean([not trial.accepted and not trial.empty for trial in found]),
                    np.exp(-np.median(likelihood)),
                ]
                shown = ",".join(f"{number:.2f}" for number in numbers)
                print(
                    f"{'short' if short else 'provokes'},{perturb},{sum(moved)},{shown}", flush=True
                )


if __name__ == "__main__":
    main()
