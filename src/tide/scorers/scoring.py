"""Batches the texts of many coroutines into few scorer calls.

A quick scorer is called in the coroutines' event loop, and any other scorer in a thread: one call
at a time, or up to eight if its calls may run side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from tide.core.concurrency import ABORT, start_thread
from tide.core.errors import ScorerError, ScorerUnavailableError, TideError, described
from tide.scorers.base import Exchange, Scorer, Skip, TextScore, score_groups
from tide.scorers.languages import with_word_lists


@dataclass(frozen=True)
class _Request:
    """Exchanges to score together. skip: see `score_texts`. scorer: the scorer or its screen."""

    exchanges: Sequence[Exchange]
    skip: Skip | None
    scorer: Scorer
    future: asyncio.Future[Sequence[TextScore]]


# A quick scorer scores a request in the event loop if its texts have at most this many characters;
# if they are windows of one growing text, whose new words alone are read, each text may have so
# many. A thread costs more than a few words.
_SHORT, _SHORT_WINDOWS = 2_000, 8_000
_MOST_CALLS = 8  # at once, of a concurrent scorer

_Results = list[tuple[_Request, Sequence[TextScore] | TideError]]


class Scoring:
    """Sends texts to `scorer`. Call its methods from a single event loop.

    Texts that arrive while no other call may run are sent together in the next one. Equal texts of
    a call are sent once, cancelled texts are not sent, and a text that the scorer rejects fails
    only its request.

    scorer: with word lists in other languages if it reads only English.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = with_word_lists(scorer)
        self._quick: list[_Request] = []  # wait for this iteration of the loop to end
        self._slow: list[_Request] = []  # wait for a call
        self._most_calls = _MOST_CALLS if self.scorer.concurrent else 1
        self._running = 0  # calls

    def send(
        self,
        exchanges: Sequence[Exchange],
        skip: Skip | None = None,
        *,
        screened: bool = False,
        growing: bool = False,
    ) -> asyncio.Future[Sequence[TextScore]]:
        """Return a future for the scores of `exchanges`; it fails with a TideError.

        skip: see `score_texts`. screened: use only the scorer's screen. growing: whether the texts
        are windows of one text that grows.
        """
        future: asyncio.Future[Sequence[TextScore]] = asyncio.get_running_loop().create_future()
        scorer = self.scorer
        if screened:
            scorer = scorer.screen or scorer
        sizes = [len(exchange.text) for exchange in exchanges]
        most = _SHORT_WINDOWS if growing else _SHORT
        is_short = max(sizes, default=0) <= _SHORT and sum(sizes) <= most
        in_loop = scorer.quick and is_short
        waiting, call = (self._quick, self._score_now) if in_loop else (self._slow, self._call)
        waiting.append(_Request(exchanges, skip, scorer, future))
        if len(waiting) == 1:  # texts sent in one iteration of the loop share a call
            asyncio.get_running_loop().call_soon(call)
        return future

    def _score_now(self) -> None:
        """Score the texts for a quick scorer."""
        sent = [request for request in self._quick if not request.future.done()]
        self._quick = []
        _answer(_score(sent))

    def _call(self) -> None:
        """Let a thread score the other texts, if another call may run."""
        self._slow = [request for request in self._slow if not request.future.done()]
        if self._running == self._most_calls or not self._slow:
            return
        sent, self._slow = self._slow, []
        self._running += 1
        loop, abort = asyncio.get_running_loop(), Future[None]()

        def call() -> None:
            ABORT.set(abort)
            results = _score(sent)
            with suppress(RuntimeError):  # nobody waits for scores after the loop is closed
                loop.call_soon_threadsafe(self._deliver, results)

        def abort_if_all_done(_: object) -> None:
            # Futures are set in order, so the last one decides at once.
            if all(request.future.done() for request in reversed(sent)):
                abort.cancel()

        for request in sent:
            request.future.add_done_callback(abort_if_all_done)

        try:
            start_thread(call, "tide scorer")
        except RuntimeError as error:  # the process has too many threads
            problem = ScorerUnavailableError(f"scorer {sent[0].scorer.name}: {error}")
            self._deliver([(request, problem) for request in sent])

    def _deliver(self, results: _Results) -> None:
        self._running -= 1
        _answer(results)
        self._call()


def _answer(results: _Results) -> None:
    for request, result in results:
        if request.future.done():
            continue
        if isinstance(result, TideError):
            request.future.set_exception(result)
            request.future.exception()  # read, or asyncio logs it if nobody awaits the future
        else:
            request.future.set_result(result)


def _score(sent: Sequence[_Request]) -> _Results:
    """Return each request with its scores or its error. Equal texts are sent once."""
    calls: dict[tuple[Skip | None, int], list[_Request]] = {}
    for request in sent:
        calls.setdefault((request.skip, id(request.scorer)), []).append(request)
    results: _Results = []
    for requests in calls.values():
        skip, scorer = requests[0].skip, requests[0].scorer
        answers: Sequence[Sequence[TextScore] | TideError]
        try:
            answers = score_groups(scorer, [request.exchanges for request in requests], skip)
        except TideError as error:  # the scorer itself failed, so all requests fail
            answers = [error] * len(requests)
        except BaseException as error:
            problem = f"scorer {scorer.name} failed: {described(error)}"
            answers = [ScorerError(problem)] * len(requests)
        results += zip(requests, answers, strict=True)
    return results
