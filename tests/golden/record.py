"""Record what searches and long answers give: `python -m tests.golden.record NAME...`.

Without names, every case is recorded. Only after a deliberate change of results, and the commit
says which. Texts are kept as digests:
what the bundled models write does not belong in the project.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b, sha256
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers

from tide import Detoxifier, Result
from tide.core.chat import Chat
from tide.core.results import ScoredCompletion, Trial
from tide.data.texts import read_rows

HERE = Path(__file__).parent
DATA = HERE.parents[2] / "shared" / "data"
GOLDEN = HERE / "core.jsonl.gz"

# Of each prompt, its trials.
Results = list[list[dict[str, Any]]]

_PUBLISHED = {
    "strategy": "tide:variant=published",
    "toxicity_threshold": 0.5,
    "perturb": "all",
    "accept_empty": True,
    "num_trials": 3,
}
_LONG = {"max_new_tokens": 128, "temperature": 0.7}


@dataclass(frozen=True)
class Case:
    """Prompts `start` to `start + count` of a kind, completed with a preset and settings.

    quick: number of those that every run of the tests completes.
    """

    name: str
    preset: str = "relative"
    settings: dict[str, Any] = field(default_factory=dict)
    model: str = "pocket"
    prompts: str = "rtp"
    start: int = 0
    count: int = 200
    quick: int = 10
    streams: bool = False

    def results(self, count: int) -> Iterator[Result]:
        """Return the results of the first `count` prompts."""
        prompts = list(islice(_prompts(self.prompts), self.start, self.start + count))
        with Detoxifier(self.model, scorer="pocket", preset=self.preset, **self.settings) as detox:
            if self.streams:
                for prompt in prompts:
                    yield _streamed(detox, prompt)
            else:
                yield from detox.map(prompts)


CASES = (
    *(
        Case(name, settings={"strategy": name, "toxicity_threshold": 0.5})
        for name in ("tide", "resample", "shuffled", "random-walk")
    ),
    Case("published", settings=_PUBLISHED, quick=4),
    Case("paper", settings={**_PUBLISHED, "strategy": "tide:variant=paper"}, count=50, quick=2),
    Case("backtrack", "backtrack"),
    Case("long backtrack", "backtrack", _LONG, "pocket-chat", "chat", 50, 25, quick=2),
    Case(
        "backtrack stream", "backtrack", _LONG, "pocket-chat", "chat", 75, 5, quick=2, streams=True
    ),
)


def _prompts(kind: str) -> Iterator[str | Chat]:
    if kind == "rtp":
        for row in read_rows(DATA / "benchmarks" / "rtp_challenging.jsonl"):
            yield row.text
        return
    # The first characters of the SHA-256 of each comment, in their order.
    digests = (HERE / "dialogues.txt").read_text().split()
    comments = {}
    path = DATA / "corpus" / "dialogues.jsonl.gz"
    for row in read_rows(path, field="context", skip_empty=True):
        comments[sha256(row.text.encode()).hexdigest()[: len(digests[0])]] = row.text
    for digest in digests:
        yield Chat.of([{"role": "user", "content": comments[digest]}])


def _streamed(detox: Detoxifier, prompt: str | Chat) -> Result:
    with detox.stream(prompt) as stream:
        assert "".join(stream) == stream.result.text
        return stream.result


def described(result: Result) -> list[dict[str, Any]]:
    """Everything that a result says, without the texts."""
    return [_trial(trial) for trial in result.trials]


def _trial(trial: Trial) -> dict[str, Any]:
    # base_partial: says of the trace what it is, and is no result of its own. parts: of chats
    # before a server alone. prompt_tokens: the prompt's.
    left_out = {"trace", "shown", "base_partial", "parts", "prompt_tokens"}
    plain = trial.model_dump(exclude=left_out)
    return {
        **plain,
        "text": _digest(trial.text),
        "trace": [_evaluation(evaluation) for evaluation in trial.trace],
    }


def _evaluation(evaluation: ScoredCompletion) -> list[Any]:
    measured = (evaluation.toxicity, evaluation.cosine, evaluation.displacement)
    numbers = [round(number, 5) for number in measured]
    reason = f"{evaluation.role[0]}{evaluation.finish_reason[0]}{int(evaluation.empty)}"
    counts = [evaluation.round, evaluation.iteration, evaluation.num_tokens]
    return [_digest(evaluation.text), *numbers, *counts, reason]


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=4).hexdigest()


def machine() -> str:
    """Name the processor and the libraries; where they are the same, sums round alike."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    fields = dict(line.split("\t", 1) for line in lines if "\t" in line)
    names = ("model name", "cpu family", "model", "stepping")
    processor = [fields.get(name, "").strip("\t: ") for name in names]
    instructions = torch.backends.cpu.get_cpu_capability()
    return " ".join([*processor, instructions, torch.__version__, transformers.__version__])


@cache
def read_golden() -> tuple[str, dict[str, Results]]:
    """Return the machine that recorded, and for each case, by name, the results of each prompt."""
    with gzip.open(GOLDEN, "rt") as file:
        recorded_on, *cases = map(json.loads, file)
    return recorded_on, dict(cases)


def main(*names: str) -> None:
    torch.set_num_threads(1)  # as in the tests
    recorded_on, recorded = read_golden() if names else (machine(), {})
    if recorded_on != machine():
        sys.exit(f"the other cases were recorded on {recorded_on}; record all on one machine")
    for case in CASES:
        if case.name in names or not names:
            recorded[case.name] = [described(result) for result in case.results(case.count)]
            print(case.name, len(recorded[case.name]))
    write_golden(recorded)


def write_golden(recorded: dict[str, Results]) -> None:
    with gzip.GzipFile(GOLDEN, "wb", mtime=0) as file:
        for line in (machine(), *([case.name, recorded[case.name]] for case in CASES)):
            file.write((json.dumps(line, separators=(",", ":")) + "\n").encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
