"""The synchronous API: prompts in, detoxified completions out, with a full trace."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from tide.core.chat import Chat
from tide.core.errors import SCORER_DOWN, EngineError, InputError, ScorerBrokenError, TideError
from tide.core.results import Result
from tide.detoxifier.base import DetoxifierBase, result_of

if TYPE_CHECKING:
    from tide.core.settings import Overrides, Settings
    from tide.search import LoadedStrategy

# Errors that abort the whole call.
_ABORT = (EngineError, *SCORER_DOWN, ScorerBrokenError)
# Prompts handed to the engine's loop per sequence that the engine runs at once.
_AHEAD = 3

_Outcome = Result | TideError
# `map` closes these: since Python 3.13 a generator that is closed keeps its variables, so the inner
# generators, and the prompts under way, would go on.
_Outcomes = Generator[tuple[int, _Outcome], None, None]


class Detoxifier(DetoxifierBase):
    """Completes prompts with text that a scorer accepts, by banning words or moving embeddings.

        detox = Detoxifier("openai-community/gpt2-large", scorer="hf:unitary/toxic-bert#toxic")
        result = detox("So, I'm starting to think she's full of")
        result.text, result.toxicity, result.accepted, result.trace

    Args:
        model: A folder, a hub id, a GGUF file, a bundled model ("pocket", "pocket-chat"), a model
            from a package ("smollm2", "gemma3-270m"), or an `Engine`.
        scorer: A spec, a `Scorer`, or a function from a list of texts to scores in [0, 1]; a scorer
            or a function may be asynchronous.
        engine: The engine that runs `model`: "transformers", "vllm" or "openai".
        preset: Settings to start from: a name, or "auto", which is
            "backtrack" or, for another strategy, the preset of the model's name.
        settings: Settings to use as they are, without a preset.
        device: "cpu", "cuda", "cuda:1", ... By default a GPU if there is one.
        dtype: "float32", "bfloat16" or "float16". By default chosen by the device and the model.
        max_batch: Maximum sequences in a model call. By default chosen by the engine.
        engine_options: Further options of the engine (`base_url`, ...); see `tide methods ENGINE`.
        **overrides: Single settings, as in `Detoxifier(mu=0.1, num_trials=3)`.

    Raises:
        InputError: A name, setting or model cannot be used.
        EngineError: The model cannot be loaded.
        ScorerError: The scorer cannot be loaded.
        MissingDependencyError: An optional package is missing; the message says what to install.
    """

    def __call__(self, prompt: str | Chat, **overrides: Unpack[Overrides]) -> Result:
        """Complete a prompt or answer a chat. The result does not depend on other prompts.

        Args:
            prompt: A text, or a `Chat`.
            **overrides: Settings for this call alone.

        Returns:
            The completion with its score, and everything that was tried.

        Raises:
            TideError: The errors of `map`.
        """
        future = self._start(prompt, *self._resolve(overrides))
        try:
            return self._warn_if_not_accepted(result_of(future))
        finally:
            future.cancel()

    def chat(self, messages: Sequence[Any], **overrides: Unpack[Overrides]) -> Result:
        """Answer a conversation.

        Args:
            messages: `[{"role": "user", "content": "..."}, ...]`. Roles are "system", "user" and
                "assistant"; the last message is from the user.
            **overrides: Settings for this call alone.

        Returns:
            The answer with its score, and everything that was tried.

        Raises:
            InputError: The messages are malformed, or the model has no chat template.
            TideError: The errors of `map`.
        """
        return self(Chat.of(messages), **overrides)

    def stream(self, prompt: str | Chat, **overrides: Unpack[Overrides]) -> TextStream:
        """Complete one prompt, giving out each part of the text once it is accepted.

            with detox.stream("She told me that") as stream:
                for text in stream:
                    print(text, end="")
            stream.result

        Text that was given out is never taken back, and only accepted text is given out:
        `on_unresolved="best"` is treated as "refuse" here.

        Args:
            prompt: A text, or a `Chat`.
            **overrides: Settings for this call alone.

        Returns:
            An iterator over the parts of the text. It raises the same errors as a call, after all
            parts that were accepted before the error.
        """
        texts = SimpleQueue[str | None]()
        future = self._start(prompt, *self._resolve(self._for_stream(overrides)), on_text=texts.put)
        future.add_done_callback(lambda _: texts.put(None))
        return TextStream(texts, future)

    @overload
    def map(
        self,
        prompts: Iterable[str | Chat],
        *,
        ordered: bool = True,
        return_exceptions: Literal[False] = False,
        **overrides: Unpack[Overrides],
    ) -> Iterator[Result]: ...

    @overload
    def map(
        self,
        prompts: Iterable[str | Chat],
        *,
        ordered: bool = True,
        return_exceptions: bool,
        **overrides: Unpack[Overrides],
    ) -> Iterator[Result | TideError]: ...

    def map(
        self,
        prompts: Iterable[str | Chat],
        *,
        ordered: bool = True,
        return_exceptions: bool = False,
        **overrides: Unpack[Overrides],
    ) -> Iterator[Any]:
        """Complete many prompts together, yielding each result once.

        Prompts are taken from the iterable as they are needed.

        Args:
            prompts: Texts or chats.
            ordered: Yield in the order of the prompts; otherwise as they finish.
            return_exceptions: Yield the error of a failed prompt in place of its result, and
                continue; otherwise raise it. Errors that abort the whole call are always raised:
                EngineError, ScorerUnavailableError, ScorerRefusedError and ScorerBrokenError.
            **overrides: Settings for these prompts alone.

        Yields:
            One `Result`, or TideError, per prompt.

        Raises:
            InputError: A prompt is empty or too long, or a setting cannot be used.
            UnresolvedError: Nothing was accepted, with `on_unresolved="raise"`.
            TideError: Anything else failed. The message of a prompt's error begins with the
                prompt's number, from 0; results that were yielded before are valid.
        """
        finished = outcomes(self, prompts, ordered=ordered, **overrides)

        def results() -> Iterator[_Outcome]:
            with closing(finished):
                for number, result in finished:
                    if isinstance(result, Result):
                        yield self._warn_if_not_accepted(result)
                        continue
                    result.args = (f"prompt {number}: {result}",)
                    if not return_exceptions:
                        raise result
                    yield result

        return results()

    def _as_completed(
        self,
        prompts: Iterable[str | Chat],
        settings: Settings,
        strategy: LoadedStrategy,
        trials: Sequence[int],
    ) -> _Outcomes:
        """Yield the number and the outcome of each prompt as the prompt ends."""
        entering = iter(enumerate(prompts))
        limit = max(1, _AHEAD * self.engine.max_batch // len(trials))
        under_way: dict[Future[Result], int] = {}
        ended: SimpleQueue[Future[Result]] = SimpleQueue()
        try:
            while True:
                for number, prompt in islice(entering, limit - len(under_way)):
                    future = self._start(prompt, settings, strategy, trials)
                    under_way[future] = number
                    future.add_done_callback(ended.put)
                    if not ended.empty():  # a slow source must not delay finished results
                        break
                if not under_way:
                    return
                future = ended.get()
                try:
                    outcome: _Outcome = result_of(future)
                except _ABORT:
                    raise
                except TideError as error:  # concerns this prompt alone
                    outcome = error
                yield under_way.pop(future), outcome
        finally:
            for future in under_way:
                future.cancel()


def outcomes(
    detoxifier: Detoxifier,
    prompts: Iterable[str | Chat],
    *,
    ordered: bool = True,
    trials: Sequence[int] | None = None,
    **overrides: Unpack[Overrides],
) -> _Outcomes:
    """Like `Detoxifier.map(..., return_exceptions=True)`, with the number of each prompt, from 0.

    trials: numbers of the trials to run, instead of all `num_trials`; a trial's result does not
    depend on other trials.
    """
    if isinstance(prompts, str):
        raise InputError("prompts: expected several texts, got one string; wrap it in a list")
    settings, strategy = detoxifier._resolve(overrides)
    numbers = range(settings.num_trials) if trials is None else sorted(trials)
    finished = detoxifier._as_completed(prompts, settings, strategy, numbers)
    return _in_order(finished) if ordered else finished


class TextStream:
    """Iterates over the accepted parts of a text. Closing the stream ends the work."""

    def __init__(self, texts: SimpleQueue[str | None], future: Future[Result]) -> None:
        self._texts, self._future = texts, future
        self._ended = False

    @property
    def result(self) -> Result:
        """Wait for the result, whose text joins the parts; raises the errors of a call."""
        return result_of(self._future)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        text = None if self._ended else self._texts.get()
        if text is None:
            self._ended = True
            result_of(self._future)  # raises the work's exception
            raise StopIteration
        return text

    def close(self) -> None:
        """End the work, if the work is still running."""
        self._future.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _in_order(finished: _Outcomes) -> _Outcomes:
    waiting: dict[int, _Outcome] = {}
    turn = 0
    with closing(finished):
        for number, result in finished:
            waiting[number] = result
            while turn in waiting:
                yield turn, waiting.pop(turn)
                turn += 1
