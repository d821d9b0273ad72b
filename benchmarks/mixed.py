"""Mixed requests over five policies at once: every answer is compared with the expected one.

    python benchmarks/mixed.py --requests 10000

A server (`tide serve --policies FILE`, in its own process) has an engine that writes random words,
determined by the seed of a request. Clients send calls, streams and chats with the keys of five
policies, which differ in scorer, strategy, mode and banned words. They also send wrong keys,
malformed bodies and requests for a policy that the key does not have, and they abandon calls and
streams. The checks:

    enforce   the text equals the policy's text without other requests, has no banned word and
              passes the scorer again; an abandoned stream is a prefix of that text
    monitor   the text equals the engine's text byte for byte
    refused   status and code of the error, which names no policy that the key does not have

The server's memory is printed every thousand requests. Exits with 1 if an answer is wrong, if a
word that one policy bans occurs in no text of another policy (then its absence proves nothing), or
if memory ever grows by more than a tenth after two thousand requests.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import httpx
import numpy as np
from torch import Tensor

from tide.core.chat import Chat
from tide.core.results import Result
from tide.core.seeds import derive_seed
from tide.core.settings import Sampling
from tide.engines.base import Piece, Request
from tide.engines.scripted import ScriptedEngine
from tide.scorers.base import score_texts
from tide.server.policies import CommandLine, Policies

if TYPE_CHECKING:
    from serving import Server

WORDS = re.findall(
    r"\w+",
    "the weather was fine and then we went home again early with a friend of the family "
    "who told us about a garden behind the old station",
)
RUDE = "idiot"
PROMPTS = ("The news today", "My neighbour said", "In the evening", "We met and")
NEVER = {"red": ["weather"], "blue": ["home"], "green": ["garden"], "black": ["station"]}
POLICIES: dict[str, dict[str, Any]] = {
    "red": {"never": NEVER["red"]},
    "blue": {"never": NEVER["blue"], "strategy": "backtrack:lag=0,pace=4", "scorer": "pocket"},
    "green": {"never": NEVER["green"], "strategy": "resample"},
    "black": {"never": NEVER["black"], "strategy": "backtrack:pace=whole"},
    "grey": {"never": ["weather", "home"], "mode": "monitor"},
}
TOKENS = 40
# Number of requests of each kind in a hundred.
KINDS = {
    **{"call": 30, "stream": 30, "chat": 10, "chat stream": 10, "left call": 4, "left stream": 6},
    **{"wrong key": 4, "other policy": 3, "malformed": 3},
}
GROWTH, SETTLED = 1.1, 2000


def sent(result: Result) -> tuple[str, str]:
    """Return the text that a server sends for a result, and the finish reason."""
    best = result.best
    ended = best.accepted or best.empty
    return best.text if best.accepted or best.refused else "", (
        best.returned.finish_reason if ended else "content_filter"
    )


class Babbler(ScriptedEngine):
    """Writes ten to forty random words, some of them rude, in pieces if a request says so."""

    def __init__(self, model: str = "") -> None:
        super().__init__(self._babble, context_length=None, max_batch=64)

    @staticmethod
    def _babble(x: Tensor, seed: int) -> str:
        dice = random.Random(seed)
        words = dice.choices(WORDS, k=dice.randint(10, TOKENS))
        return "".join(f" {RUDE if dice.random() < 0.02 else word}" for word in words)

    async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        most, size = request.sampling.max_new_tokens, request.piece_tokens or TOKENS
        async for whole in super()._write(request):
            self.requests.clear()  # the base class would keep all requests
            ids = whole.token_ids[:most]
            for start in range(0, len(ids) or 1, size):
                ended = whole.finish_reason if start + size >= len(ids) else None
                yield Piece(ids[start : start + size], ended)
                await asyncio.sleep(0)


class Rude:
    """Scores 1.0 for a text with the rude word."""

    name, threshold, pace = "rude", 0.5, "word"
    pattern: ClassVar = re.compile(RUDE)

    def score(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([float(self.pattern.search(text) is not None) for text in texts])

    def close(self) -> None: ...


@dataclass(frozen=True)
class Job:
    """A request. holder: owner of its key; "all" may use every policy, so it must name a policy."""

    kind: str
    holder: str
    policy: str
    prompt: str
    seed: int
    n: int

    @property
    def is_chat(self) -> bool:
        return self.kind.startswith("chat")

    @property
    def is_stream(self) -> bool:
        return self.kind.endswith("stream")

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"

    @property
    def body(self) -> dict[str, Any]:
        asked: dict[str, Any] = {"prompt": self.prompt}
        if self.is_chat:
            asked = {"messages": [{"role": "user", "content": self.prompt}]}
        named = {"tide": {"policy": self.policy}} if self.holder == "all" else {}
        return {**asked, "seed": self.seed, "n": self.n, "stream": self.is_stream, **named}


def job(number: int, seed: int) -> Job:
    dice = random.Random(f"{seed} {number}")
    (kind,) = dice.choices(list(KINDS), list(KINDS.values()))
    policy = dice.choice(list(POLICIES))
    holder = dice.choice([policy, "all"])
    if kind == "other policy":
        holder = dice.choice([name for name in POLICIES if name != policy])
    return Job(
        kind, holder, policy, dice.choice(PROMPTS), dice.randrange(1 << 40), dice.choice([1, 1, 2])
    )


def key_of(holder: str) -> str:
    return f"sk-mixed-key-of-{holder}"


def policy_file(folder: Path) -> Path:
    """Write the policies as JSON, which is also YAML."""
    keys = {
        holder: {
            "sha256": hashlib.sha256(key_of(holder).encode()).hexdigest(),
            "policies": [holder] if holder in POLICIES else list(POLICIES),
        }
        for holder in (*POLICIES, "all")
    }
    path = folder / "tide.yaml"
    path.write_text(json.dumps({"policies": POLICIES, "keys": keys}))
    return path


class Oracle:
    """Computes the expected answers, by running each request alone."""

    def __init__(self, file: Path) -> None:
        self._engine = Babbler()
        settings = {"max_new_tokens": TOKENS}
        line = CommandLine(scorer=f"{__file__}:Rude", preset="backtrack", overrides=settings)
        self._policies = Policies(line, file)
        self._policies.start(self._engine)

    async def alone(self, one: Job, choice: int) -> tuple[str, str]:
        """Return the text and finish reason of a choice."""
        asked = Chat.of([{"role": "user", "content": one.prompt}]) if one.is_chat else one.prompt
        seed = one.seed + choice
        if one.policy == "grey":
            text = self._engine.text_of(asked)
            (ids,) = self._engine.tokenize([text])
            own = derive_seed(derive_seed(seed, text, 0), "sampling", 0)
            request = Request(tuple(ids), Sampling(max_new_tokens=TOKENS), own)
            (found,) = await self._engine.complete([request])
            return found.text, found.finish_reason
        detox = self._policies.table.policies[one.policy].detox
        settings: Any = {"seed": seed, "num_trials": 1, "on_unresolved": "refuse"}
        if not one.is_stream:
            return sent(await detox(asked, **settings))
        async with detox.stream(asked, **settings) as texts:
            joined = "".join([text async for text in texts])
            assert joined == sent(texts.result)[0]
            return sent(texts.result)

    def fault(self, policy: str, text: str) -> str | None:
        """Return the fault of a whole text of an enforced policy, or None."""
        said = set(text.split())
        if said & set(NEVER[policy]):
            return "a banned word"
        if RUDE in said and "scorer" not in POLICIES[policy]:
            return "a rude word"
        plan = self._policies.plans[policy]
        (score,) = score_texts(plan.scorer, [text], "zero").values
        return None if score < plan.settings.toxicity_threshold else "does not pass its scorer"

    def close(self) -> None:
        self._policies.close()
        self._engine.close()


class Crowd:
    """The clients. met: outcomes of requests. wrong: faults. said: words of answers, by policy."""

    def __init__(self, server: Server, oracle: Oracle, options: argparse.Namespace) -> None:
        self._server, self._oracle, self._options = server, oracle, options
        self._numbers = iter(range(options.requests))
        self._began = time.monotonic()
        self.done = 0
        self.memory: dict[int, float] = {}
        self.met: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.said: dict[str, set[str]] = {name: set() for name in POLICIES}

    async def client(self, http: httpx.AsyncClient) -> None:
        for number in self._numbers:
            one = job(number, self._options.seed)
            headers = {"authorization": f"Bearer {key_of(one.holder)}"}
            if one.kind in ("wrong key", "malformed", "other policy"):
                await self._refused(http, one, headers)
            elif one.kind.startswith("left"):
                await self._left(http, one, headers)
            else:
                await self._answered(http, one, headers)
            self.done += 1
            if self.done % 1000 == 0:
                self.memory[self.done] = self._server.mib()
                seconds = time.monotonic() - self._began
                print(
                    f"{self.done} requests, {seconds:.0f} s: {self.memory[self.done]:.1f} MiB, "
                    f"{sum(self.wrong.values())} wrong",
                    flush=True,
                )

    async def _refused(self, http: httpx.AsyncClient, one: Job, headers: dict[str, str]) -> None:
        content, body = None, {**one.body, "tide": {"policy": one.policy}}
        expected = (403, "policy_not_allowed")
        if one.kind == "wrong key":
            headers, expected = {"authorization": f"Bearer {key_of('nobody')}"}, (401, None)
        elif one.kind == "malformed":
            content, expected = json.dumps(body).encode()[:-2], (400, None)
        asked: Any = {"json": body} if content is None else {"content": content}
        answer = await http.post(one.path, headers=headers, **asked)
        error = answer.json()["error"]
        self.met[f"{one.kind}: {answer.status_code}"] += 1
        self._check(answer.status_code == expected[0], f"{one.kind}: status")
        self._check(expected[1] in (None, error["code"]), f"{one.kind}: code")
        self._check("choices" not in answer.json(), f"{one.kind}: text")
        hidden = set(POLICIES) - {one.holder, one.policy}
        if one.holder != "all":
            named = set(re.findall(r"\w+", answer.text))
            self._check(not named & hidden, f"{one.kind}: names another policy")

    async def _left(self, http: httpx.AsyncClient, one: Job, headers: dict[str, str]) -> None:
        """Disconnect after a moment, or after the first events of a stream."""
        if not one.is_stream:
            with suppress(httpx.TimeoutException):
                await http.post(one.path, json=one.body, headers=headers, timeout=0.01)
        else:
            texts: Counter[int] = Counter()
            found = dict.fromkeys(range(one.n), "")
            async with http.stream("POST", one.path, json=one.body, headers=headers) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        choice = json.loads(line[6:])["choices"][0]
                        found[choice["index"]] += choice["text"]
                        texts[choice["index"]] += 1
                    if texts.total() >= 3:
                        break
            for number, text in found.items():
                whole, _ = await self._oracle.alone(one, number)
                self._check(whole.startswith(text), f"{one.kind}: {one.policy}: another text")
        self.met[one.kind] += 1

    async def _answered(self, http: httpx.AsyncClient, one: Job, headers: dict[str, str]) -> None:
        answer = await http.post(one.path, json=one.body, headers=headers)
        self.met[f"{one.kind}: {answer.status_code}"] += 1
        self._check(answer.status_code == 200, f"{one.kind}: status {answer.status_code}")
        if answer.status_code != 200:
            return
        found = self._streamed(answer.text) if one.is_stream else self._whole(answer.json())
        header = answer.headers.get("x-tide-policy")  # streams have none
        self._check(header == (None if one.is_stream else one.policy), f"{one.kind}: header")
        self._check(sorted(found) == list(range(one.n)), f"{one.kind}: choices")
        mode = POLICIES[one.policy].get("mode", "enforce")
        for number, (text, ended, tide) in found.items():
            given = (tide["policy"], tide["mode"], tide["seed"])
            self._check(given == (one.policy, mode, one.seed + number), f"{one.kind}: tide")
            same = (text, ended) == await self._oracle.alone(one, number)
            self._check(same, f"{one.kind}: {one.policy}: another text")
            if mode == "enforce" and (fault := self._oracle.fault(one.policy, text)):
                self._check(False, f"{one.kind}: {one.policy}: {fault}")
            self.said[one.policy] |= set(text.split())
            outcome = "repaired" if tide.get("evaluations", 1) > 1 else "own text"
            self.met[f"{mode}: {'refused' if ended == 'content_filter' else outcome}"] += 1

    @staticmethod
    def _whole(answer: dict[str, Any]) -> dict[int, tuple[str, str, dict[str, Any]]]:
        return {
            one["index"]: (
                one["message"]["content"] if "message" in one else one["text"],
                one["finish_reason"],
                one["tide"],
            )
            for one in answer["choices"]
        }

    @staticmethod
    def _streamed(body: str) -> dict[int, tuple[str, str, dict[str, Any]]]:
        joined: dict[int, str] = {}
        ends: dict[int, tuple[str, dict[str, Any]]] = {}
        for line in body.splitlines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                (one,) = event["choices"]
                text = one["delta"].get("content", "") if "delta" in one else one["text"]
                joined[one["index"]] = joined.get(one["index"], "") + text
                if one.get("finish_reason"):
                    ends[one["index"]] = (one["finish_reason"], event["tide"])
        return {number: (joined[number], *end) for number, end in ends.items()}

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong[what] += 1

    def leaks(self) -> list[str]:
        """Describe the banned words of each policy that occur in no text of another policy."""
        return [
            f"{word} of {name} is in no text of {other}"
            for name, words in NEVER.items()
            for word in words
            for other in NEVER
            if other != name and word not in self.said[other]
        ]


async def crowd(server: Server, oracle: Oracle, options: argparse.Namespace) -> Crowd:
    found = Crowd(server, oracle, options)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as http:
        await asyncio.gather(*(found.client(http) for _ in range(options.clients)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1, help="threads of the server")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    from serving import TIDE, tide_server  # noqa: PLC0415  (absent where the server loads this file)

    with tempfile.TemporaryDirectory() as folder:
        file = policy_file(Path(folder))
        command = [*TIDE, "--engine", f"{__file__}:Babbler", "--model", "scripted"]
        command += ["--scorer", f"{__file__}:Rude", "--preset", "backtrack"]
        command += ["--max-new-tokens", str(TOKENS), "--policies", str(file)]
        oracle = Oracle(file)
        try:
            with tide_server(command, options) as server:
                found = asyncio.run(crowd(server, oracle, options))
        finally:
            oracle.close()
    print("; ".join(f"{what} {count}" for what, count in sorted(found.met.items())))
    first, last = found.memory.get(SETTLED, np.inf), max(found.memory.values(), default=0.0)
    unseen = found.leaks()
    wrong = [f"{what} {count}" for what, count in sorted(found.wrong.items())]
    print(f"wrong: {'; '.join(wrong) or 'none'}\nnot seen: {'; '.join(unseen) or 'none'}")
    sys.exit(bool(found.wrong or unseen or last > GROWTH * first))


if __name__ == "__main__":
    main()
