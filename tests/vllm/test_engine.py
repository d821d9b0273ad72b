"""vLLM in process writes what the engine transformers writes; streams, bans, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import psutil
import pytest
import torch
from benchmarks.writing import completed
from scipy.stats import ks_2samp

from tests.server.running import wait_until
from tests.vllm.servers import cpu_environment
from tide import Detoxifier, load_scorer
from tide.core.errors import EngineError, InputError
from tide.core.settings import Sampling
from tide.engines.base import Engine, Piece, Request
from tide.engines.local.engine import TransformersEngine
from tide.engines.vllm import VllmEngine

# Warnings are vLLM's own.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

GREEDY = Sampling(temperature=0.0)
LONG = Sampling(temperature=0.0, max_new_tokens=200, min_new_tokens=200)
SHORT = Sampling(temperature=0.0, max_new_tokens=24)


def test_the_same_greedy_completions(
    engine: Engine, local: TransformersEngine, prompts: list[str]
) -> None:
    embedded = local.embed(prompts[:100])
    generator = torch.Generator().manual_seed(0)
    moved = [  # not only points that are tokens
        x + 0.02 * torch.randn(x.shape, generator=generator) for x in embedded
    ]
    assert completed(engine, moved, GREEDY, range(100)) == completed(
        local, moved, GREEDY, range(100)
    )
    assert all(map(torch.equal, embedded, engine.embed(prompts[:100])))
    assert list(map(engine.encode, prompts[:100])) == list(map(local.encode, prompts[:100]))


def test_the_same_where_only_the_last_rows_differ(
    engine: Engine, local: TransformersEngine, prompts: list[str]
) -> None:
    """What comes before them is in vLLM's cache from the second call on."""
    (embedded,) = local.embed([" ".join(prompts[:8])])
    x = embedded[:200]
    generator = torch.Generator().manual_seed(0)
    noise = 0.02 * torch.randn(6, 8, x.shape[1], generator=generator)
    rows = [x, *(torch.cat([x[:-8], x[-8:] + by]) for by in noise)]
    expected = completed(local, rows, GREEDY, range(7))
    for _ in range(2):
        assert completed(engine, rows, GREEDY, range(7)) == expected


def test_the_same_least_lengths_and_stop_strings(
    engine: Engine, local: TransformersEngine, prompts: list[str]
) -> None:
    embeddings = local.embed(prompts[:20])
    long = GREEDY.model_copy(update={"max_new_tokens": 30, "min_new_tokens": 25})
    whole = completed(local, embeddings, long, range(20))
    assert completed(engine, embeddings, long, range(20)) == whole
    for text in (whole[3].text[10:13], whole[7].text[1:2], "never"):
        stopped = long.model_copy(update={"stop": (text, ". ")})
        texts = completed(engine, embeddings, stopped, range(20))
        assert texts == completed(local, embeddings, stopped, range(20))
        assert any(completion.finish_reason == "stop" for completion in texts)
        assert not any(text in completion.text for completion in texts)
    with pytest.raises(InputError, match="repetition_penalty: not supported by"):
        completed(engine, embeddings, Sampling(repetition_penalty=1.1), range(20))


@pytest.mark.parametrize("strategy", ["tide", "backtrack:pace=word"])
def test_greedy_answers_that_are_watched_are_those_of_one_call(
    engine: Engine, local: TransformersEngine, short_prompts: list[str], strategy: str
) -> None:
    length = {"max_new_tokens": 96, "min_new_tokens": 96, "temperature": 0.0}
    some = short_prompts[:8]
    rows = local.embed(some)
    expected = completed(local, rows, Sampling(**length), range(8))  # type: ignore[arg-type]
    detox = Detoxifier(engine, scorer=lambda texts: [0.0] * len(texts), strategy=strategy)
    results = list(detox.map(some, **length))  # type: ignore[arg-type]
    assert [result.text for result in results] == [completion.text for completion in expected]
    assert all(result.best.generated_tokens == 96 for result in results)


def test_sampled_toxicity_has_the_same_distribution(
    engine: Engine, local: TransformersEngine, prompts: list[str]
) -> None:
    embeddings = local.embed(prompts) * 2
    seeds = range(len(embeddings))
    scores = [
        load_scorer("pocket").score(
            [c.text for c in completed(some, embeddings, Sampling(temperature=1.0), seeds)]
        )
        for some in (engine, local)
    ]
    assert np.std(scores[0]) > 0.1
    assert ks_2samp(*scores).pvalue > 0.01


def test_a_row_is_written_alone_as_in_mixed_company(
    engine: Engine, local: TransformersEngine, prompts: list[str]
) -> None:
    embeddings = local.embed(prompts[:6])
    short = Sampling(temperature=0.0, max_new_tokens=3)
    drawn = Sampling(temperature=1.0, top_p=0.9, top_k=50, max_new_tokens=9)
    samplings = [GREEDY, drawn, short, drawn, GREEDY, short]
    together = completed(engine, embeddings, samplings, range(6))
    greedy = [i for i in range(6) if i % 2 == 0 or i == 5]
    for i in greedy:
        assert completed(local, embeddings[i : i + 1], samplings[i], [i]) == [together[i]]
    for i in (1, 3):
        assert completed(engine, embeddings[i : i + 1], drawn, [i]) == [together[i]]
        assert len(together[i].token_ids) <= 9


def test_an_option_that_vllm_does_not_know() -> None:
    with pytest.raises(InputError, match="no_such_option"):
        VllmEngine("pocket", no_such_option=1)


def test_the_command_line_with_vllm_in_process(shared_data: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    command = [
        sys.executable, "-m", "tide", "run", "--engine", "vllm", "--dtype", "float32",
        "--engine-option", "enforce_eager=true", "--limit", "40", "--output", str(output),
        "--input", str(shared_data / "benchmarks" / "rtp_challenging.jsonl"),
    ]  # fmt: skip
    environment = {**os.environ, **cpu_environment()}
    del environment["VLLM_LOGGING_LEVEL"]  # quiet by itself
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert len(records) == 40
    assert sum(record["toxicity"] >= 0.5 for record in records) <= 2
    assert "INFO" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


# Streams, and requests that are abandoned


def requests(engine: Engine, texts: list[str]) -> list[Request]:
    return [Request(ids, LONG, piece_tokens=4) for ids in engine.tokenize(texts)]


async def written(engine: Engine, request: Request, began: Callable[[], None]) -> list[Piece]:
    pieces = []
    async with aclosing(engine.write(request)) as stream:
        async for piece in stream:
            pieces.append(piece)
            began()
    return pieces


def under_way(engine: VllmEngine) -> int:
    """Requests that vLLM itself still has."""
    # Of a cache in which a request still holds entries, nothing is dropped.
    dropped = engine.portal.run(engine._engine.reset_prefix_cache)
    unfinished: int = engine._engine.get_num_unfinished_requests()
    return unfinished + (not dropped)


def test_pieces_come_while_others_are_written(
    engine: Engine, local: TransformersEngine, short_prompts: list[str]
) -> None:
    some = short_prompts[:12]

    async def all_of_them() -> list[list[Piece]]:
        # Each reads on when all have begun: an engine that wrote one after the other never would.
        begun, all_begun = list[Piece](), asyncio.Event()

        async def read(request: Request) -> list[Piece]:
            async with aclosing(engine.write(request)) as stream:
                first = await anext(stream)
                begun.append(first)
                if len(begun) == len(some):
                    all_begun.set()
                await all_begun.wait()
                return [first, *[piece async for piece in stream]]

        with anyio.fail_after(120):
            return await asyncio.gather(*map(read, requests(engine, some)))

    answers = asyncio.run(all_of_them())
    assert all(len(pieces) >= 10 for pieces in answers)
    texts = [[i for piece in pieces for i in piece.token_ids] for pieces in answers]
    expected = completed(local, local.tokenize(some), LONG, range(12))
    assert texts == [list(completion.token_ids) for completion in expected]


def test_an_abandoned_request_is_aborted(
    engine: VllmEngine, local: TransformersEngine, short_prompts: list[str]
) -> None:
    some = short_prompts[:8]

    async def leave() -> None:
        async def begin(request: Request) -> None:
            async with aclosing(engine.write(request)) as pieces:
                piece = await anext(pieces)
                assert piece.finish_reason is None

        await asyncio.gather(*(begin(request) for request in requests(engine, some)))

    async def cancel() -> None:
        """In the middle of a step, and before the first piece."""
        tasks = [
            asyncio.create_task(written(engine, request, lambda: None))
            for request in requests(engine, some)
        ]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    for abandon in (leave, cancel):
        asyncio.run(abandon())
        wait_until(lambda: under_way(engine) == 0, 20.0)
    assert len(completed(engine, local.embed(some[:1]), SHORT, [0])) == 1


def test_tokens_that_are_never_drawn(
    engine: Engine, local: TransformersEngine, short_prompts: list[str]
) -> None:
    """Held back one after another, as a search would: the same tokens as transformers'."""
    some = local.tokenize(short_prompts[:20])
    held: tuple[int, ...] = (0, 2)  # no end of the text, either
    for number in range(4):
        # At last, half of the requests hold nothing back, at the same time.
        asked = [
            Request(ids, SHORT, banned_token_ids=held if number < 3 or i % 2 else ())
            for i, ids in enumerate(some)
        ]
        completions = asyncio.run(engine.complete(asked))
        assert completions == asyncio.run(local.complete(asked))
        rows = [completion.token_ids for completion in completions]
        if number < 3:
            assert not any(token in held for ids in rows for token in ids)
            assert all(len(ids) == SHORT.max_new_tokens for ids in rows)
            held += tuple({ids[len(held) % 5] for ids in rows} - set(held))


# An engine that is broken


def children() -> set[psutil.Process]:
    """All processes below this one."""
    return set(psutil.Process().children(recursive=True))


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


@pytest.fixture
def another(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[VllmEngine, set[psutil.Process]]]:
    """An engine, and the processes that it has started."""
    for name, value in cpu_environment().items():
        monkeypatch.setitem(os.environ, name, value)
    before = children()
    engine = VllmEngine("pocket", dtype="float32", enforce_eager=True)
    yield engine, children() - before
    engine.close()
    del engine
    gc.collect()  # what vLLM leaves open warns here, and not at the end of all tests


def assert_fail_amid(engine: VllmEngine, end: Callable[[], None]) -> None:
    """Requests that are under way fail, at once, when the engine ends."""

    async def end_amid() -> list[Any]:
        begun = asyncio.Event()
        amid = requests(engine, ["The weather", "A walk", "kind"])
        tasks = [asyncio.create_task(written(engine, request, begun.set)) for request in amid]
        await begun.wait()
        await asyncio.to_thread(end)
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60.0)

    ends = asyncio.run(end_amid())
    assert all(isinstance(end, EngineError) for end in ends), ends


def test_closing_leaves_no_process(another: tuple[VllmEngine, set[psutil.Process]]) -> None:
    engine, processes = another
    assert processes
    assert_fail_amid(engine, engine.close)
    wait_until(lambda: not any(map(is_alive, processes)), 10.0)


def test_an_engine_that_dies_fails_what_waits(
    another: tuple[VllmEngine, set[psutil.Process]],
) -> None:
    engine, processes = another

    def kill() -> None:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    assert_fail_amid(engine, kill)
    assert not engine.available
    began = time.monotonic()
    with pytest.raises(EngineError):
        completed(engine, engine.embed(["kind"]), SHORT, [0])
    engine.close()
    assert time.monotonic() - began < 10.0
    wait_until(lambda: not any(map(is_alive, processes)), 10.0)
