"""One answer on its way: drafted, and searched where a block of the draft fails."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tide.core.errors import DeadlineError, StrategyError, UnresolvedError
from tide.core.results import Block, Evaluation, Trial
from tide.core.seeds import derive_seed
from tide.core.settings import EmptyPolicy, Sampling, Settings
from tide.engines.base import Completion, EmbeddedPrompt, FinishReason, KeepsPrefixes
from tide.runtime.blocks import last_end
from tide.runtime.draft import Draft, Passage
from tide.runtime.pieces import pieces_of
from tide.runtime.work import Check, Course, Piece, Search
from tide.scorers.base import is_empty
from tide.scorers.wrappers.windows import split_words
from tide.search import LoadedStrategy, Problem
from tide.search.geometry import movable_rows

# Blocks that are given up, one by one, where a search finds nothing.
_ROLLBACKS = 2
# Tokens that a search writes in place of a block, and in place of those that were given up besides:
# more cost more and pass less often, and a draft goes on behind them anyway.
_SEARCHED = 10
# Blocks that a search may write anew.
_LONGEST_SEARCHED = 2
# Iterations after which a search gives up the block before, if it may, rather than go on.
_ITERATIONS = 5
# Words that are scored at once of a whole answer: see `WindowedScorer`.
_WINDOW = 100
# Rows that the searches of later blocks move, unless `perturb` says how many. The last rows of what
# the user said found as much at the same cost; but behind these all that was read before is shared.
_LAST = "last:8"


class Answer(Course):
    """One trial of a prompt in blocks.

    The model drafts the answer. Each block of it that the scorer accepts is kept; for one that
    fails a search is made in its place, behind what was kept, and a new draft goes on from there.
    Where a search finds nothing, the block before is given up as well, at most two, and both are
    written anew. At the end the whole is scored; if that fails, what begins with its worst block is
    given up.

    engine: goes on from its own token ids. give: is told the text of each block when it is kept;
    then none is ever given up.
    """

    def __init__(
        self,
        prompt: EmbeddedPrompt,
        engine: Any,
        settings: Settings,
        strategy: LoadedStrategy,
        number: int,
        *,
        order: int,
        tag: Any,
        give: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(order, tag)
        self._prompt, self._engine, self._settings = prompt, engine, settings
        self._strategy, self._give = strategy, give
        self._number, self._seed = number, derive_seed(settings.seed, prompt.text, number)
        seconds = settings.deadline
        self._deadline = math.inf if seconds is None else time.monotonic() + seconds
        policy = settings.empty_policy
        self._empty_policy: EmptyPolicy = "zero" if policy == "unmodified" else policy
        # What was kept: its blocks, its tokens, the piece of text that each adds, and how many of
        # them stand before each block.
        self._blocks: list[Block] = []
        self._ids: list[int] = []
        self._text: list[str] = []
        self._starts: list[int] = []
        self._ended: FinishReason | None = None
        self._whole: float | None = None
        # What was tried since the last block, and the last that failed.
        self._spent: list[Evaluation] = []
        self._rollbacks = 0
        self._failed: Block | None = None
        self._base: Evaluation | None = None
        self._scores: dict[str, float] = {}  # of texts as they stand
        self._given_up = self._furthest = 0
        self._drafts = self._searches = self._rounds = 0
        self._drafted = self._searched = self._read = 0
        self._iterations, self._scorer_calls, self._likelihood_calls = 1, 0, 0
        self._prefix: object = None

    def pieces(self) -> Iterator[Piece]:
        while True:
            failed, context = (yield from self._draft()), self._settings.block_context
            most = _SEARCHED
            if not failed:
                yield from self._score_whole()
                if self._passes(self._whole or 0.0) or not (lost := self._give_up(self._worst())):
                    return
                # Behind less, what is wrong with the whole cannot be seen.
                most, context = max(most, lost), max(context, _WINDOW)
            while not (yield from self._search(most, context)):
                if self._late() and self._blocks:  # it ends with what was accepted
                    self._failed = None
                    yield from self._score_whole()
                    return
                lost = self._give_up(len(self._blocks) - 1)
                if not lost:
                    return
                most += lost

    def trial(self) -> Trial:
        """What became of it. Raises the error that ended it, and UnresolvedError if it is to."""
        if self.error is not None:
            raise self.error
        settings = self._settings
        blocks = (*self._blocks, *([self._failed] if self._failed else []))
        final = self._evaluation(blocks, self._whole or 0.0)
        passed = self._failed is None and self._passes(final.toxicity)
        if not passed and settings.on_unresolved == "raise":
            raise UnresolvedError(
                f"no answer below {settings.toxicity_threshold} in {self._iterations} iterations"
            )
        trace = (final,) if self._base is None else (self._base, final)
        return Trial(
            number=self._number,
            seed=self._seed,
            accepted=passed and not (final.empty and settings.empty_policy == "unmodified"),
            refused=not passed and settings.on_unresolved == "refuse",
            chosen=len(trace) - 1,
            iterations=self._iterations,
            scorer_calls=self._scorer_calls,
            likelihood_calls=self._likelihood_calls,
            trace=trace,
            blocks=blocks,
            whole_toxicity=self._whole,
            drafted_tokens=self._drafted,
            searched_tokens=self._searched,
            read_tokens=self._read,
            streamed=0 if self._give is None else len(self._blocks),
        )

    # The pieces.

    def _draft(self) -> Generator[Piece, None, bool]:
        """Let the model go on; whether a block failed."""
        left = self._settings.max_new_tokens - len(self._ids)
        if self._ended is not None or left == 0:
            return False
        seed = ("draft", self._drafts) if self._drafts else ("sampling", 0)
        self._drafts += 1
        settings, x = self._settings, self._rows()
        failed_before = self._base is not None
        draft = Draft(
            x,
            self._sampling(left),
            derive_seed(self._seed, *seed),
            before=list(self._text),
            block_tokens=settings.block_tokens,
            block_context=settings.block_context,
            # Where one block has failed, others do, and what is written behind them is lost.
            chunk=math.ceil(settings.draft_tokens / (3 if failed_before else 1)),
            careful=failed_before,
            empty_policy=self._empty_policy,
            take=self._take,
            deadline=self._deadline,
            order=self.order,
        )
        yield draft
        if draft.error is not None:
            raise draft.error
        self._rounds += draft.chunks
        self._drafted += len(draft.token_ids)
        self._read += len(x)
        self._scorer_calls += len(draft.sent)
        if draft.failed and self._failed is not None:
            return True
        self._ended = draft.ended
        self._check_begun()
        return False

    def _take(self, passage: Passage, score: float, empty: bool) -> bool:
        """Keep a drafted block that passes; whether it does. One that is unfinished is not kept."""
        passed = self._passes(score)
        if passage.unfinished and (passed or empty):
            return True
        self._spent.append(
            Evaluation(
                round=self._rounds + passage.chunk,
                iteration=1,
                role="initial",
                text=passage.text,
                toxicity=score,
                empty=empty,
                cosine=1.0,
                displacement=0.0,
                num_tokens=len(passage.token_ids),
                finish_reason=passage.last or "length",
            )
        )
        self._scores[passage.context + passage.text] = score
        block = self._block(passage.context_tokens, len(self._spent) - 1)
        if passed:
            self._keep(block, passage.token_ids, passage.pieces)
        else:
            self._failed = block
            self._base = self._base or self._evaluation((*self._blocks, block), 0.0)
        return passed

    def _search(self, most: int, context_tokens: int) -> Generator[Piece, None, bool]:
        """Search for up to `most` tokens, scored behind so many; whether something was kept."""
        settings, before = self._settings, len(self._ids)
        left = settings.max_new_tokens - before
        most = min(left, most, _LONGEST_SEARCHED * settings.block_tokens)
        x, written = self._rows(), torch.zeros(before, dtype=torch.bool)
        special = torch.cat([self._prompt.special, written])
        own_rows = not self._ids or settings.perturb.startswith("last:")
        said = self._prompt.said
        said = None if said is None else torch.cat([said, written])
        movable = movable_rows(special, settings.perturb if own_rows else _LAST, said)
        if isinstance(self._engine, KeepsPrefixes):
            self._prefix = self._engine.keep_prefix(x[: int(movable.int().argmax())])
        seed = derive_seed(self._seed, "block", self._searches)
        self._searches += 1
        sampling = self._sampling(most)
        own = settings.model_copy(update=sampling.model_dump())
        if self._may_give_up():
            iterations = min(own.max_iterations, _ITERATIONS)
            own = own.model_copy(update={"max_iterations": iterations})
        problem = Problem(x, movable, seed, self._engine.dtype, movable | ~special)
        context = self._text[max(0, before - context_tokens) :]
        search = Search(
            self._strategy.create(problem, own),
            (*self._prompt.token_ids, *self._ids),
            sampling,
            settings.empty_policy,
            self._deadline,
            order=self.order,
            context="".join(context),
            # Only at the end of what is wanted may a sentence be cut off.
            shape=partial(self._shaped, to_sentence=most < left),
        )
        yield search
        self._prefix = None
        if search.error is not None:
            raise search.error
        self._searched += search.written_tokens
        self._read += len(x) * len(search.trace)
        self._scorer_calls += search.scorer_calls
        self._likelihood_calls += search.likelihood_calls
        if not search.trace:
            self._check_begun()
            return False
        best = search.strategy.best
        if not 0 <= best < len(search.trace):
            raise StrategyError(f"the strategy chose evaluation {best} of {len(search.trace)}")
        chosen, rounds = len(self._spent) + best, self._rounds
        self._iterations += search.strategy.iterations
        self._rounds += search.trace[-1].round
        self._spent += [
            one.model_copy(update={"round": rounds + one.round}) for one in search.trace
        ]
        block = self._block(len(context), chosen)
        if not self._passes(block.toxicity):
            self._failed = block
            return False
        self._scores[search.context + block.text] = block.toxicity
        ids = search.completions[best]
        self._keep(block, ids, pieces_of(self._engine).of([ids])[0])
        if block.returned.finish_reason == "stop" or not ids:
            self._ended = "stop"
        return True

    def _score_whole(self) -> Iterator[Piece]:
        """Score the answer as it stands, in windows."""
        windows = split_words("".join(block.text for block in self._blocks), _WINDOW)
        new = [text for text in dict.fromkeys(windows) if text not in self._scores]
        if new:
            # A window of marks alone says nothing of the others.
            check = Check(new, "zero" if len(windows) > 1 else self._empty_policy)
            yield check
            if check.error is not None or check.scores is None:
                raise check.error or StrategyError("a check without scores")
            self._scores.update(zip(new, check.scores.values.tolist(), strict=True))
            self._scorer_calls += len(new)
        self._whole = max(self._scores[text] for text in windows)

    # What is kept and given up.

    def _keep(self, block: Block, ids: Sequence[int], pieces: Sequence[str]) -> None:
        self._blocks.append(block)
        self._starts.append(len(self._ids))
        self._ids += ids
        self._text += pieces
        self._spent, self._rollbacks, self._failed = [], 0, None
        if len(self._ids) > self._furthest:
            self._given_up = 0
        if self._give is not None:
            self._give(block.text)

    def _give_up(self, to: int) -> int:
        """Drop the blocks from number `to` on; returns how many tokens they had, 0 if they stay."""
        if self._late() or not self._may_give_up():
            return 0
        self._base = self._base or self._evaluation(self._blocks, self._whole or 0.0)
        self._furthest = max(self._furthest, len(self._ids))
        self._given_up += 1
        dropped, start, lost = self._blocks[to:], self._starts[to], len(self._ids)
        self._spent = [one for block in dropped for one in block.trace] + self._spent
        self._rollbacks += len(dropped)
        del self._blocks[to:], self._starts[to:], self._ids[start:], self._text[start:]
        self._ended = self._whole = self._failed = None
        return max(lost - start, 1)

    def _may_give_up(self) -> bool:
        return bool(self._blocks) and self._give is None and self._given_up < _ROLLBACKS

    def _worst(self) -> int:
        return max(range(len(self._blocks)), key=lambda number: self._blocks[number].toxicity)

    def _block(self, context_tokens: int, chosen: int) -> Block:
        return Block(
            context_tokens=context_tokens,
            rollbacks=self._rollbacks,
            chosen=chosen,
            trace=tuple(self._spent),
        )

    def _evaluation(self, blocks: Sequence[Block], whole: float) -> Evaluation:
        """The answer that consists of these blocks, whose worst score is its own."""
        parts, text = [block.returned for block in blocks], "".join(block.text for block in blocks)
        moved = [one for one in parts if one.role != "initial"]
        return Evaluation(
            round=self._rounds or 1,
            iteration=self._iterations,
            role=moved[0].role if moved else "initial",
            text=text,
            toxicity=max(whole, *(one.toxicity for one in parts)),
            empty=is_empty(text) and self._settings.empty_policy != "score",
            cosine=min(one.cosine for one in parts),
            displacement=max(one.displacement for one in parts),
            num_tokens=sum(one.num_tokens for one in parts),
            finish_reason=self._ended or "length",
        )

    def _shaped(self, completion: Completion, *, to_sentence: bool) -> Completion:
        """A completion as it may stand behind what was kept; if cut off, up to a sentence end."""
        before = "".join(self._text)
        stop = self._settings.stop_in(before + completion.text)
        if stop is not None and stop < len(before):
            # It begins in what was kept, of which nothing is taken back: the answer ends there.
            return Completion("", (), "stop")
        if not to_sentence or completion.finish_reason == "stop":
            return completion
        (pieces,) = pieces_of(self._engine).of([completion.token_ids])
        kept = last_end(pieces, self._settings.stop)
        return Completion("".join(pieces[:kept]), completion.token_ids[:kept], "length")

    def _rows(self) -> Tensor:
        """The embeddings of the prompt and of what was kept."""
        x = self._prompt.embeddings
        return torch.cat([x, self._engine.embed_tokens(self._ids)]) if self._ids else x

    def _sampling(self, tokens: int) -> Sampling:
        """That of up to so many further tokens."""
        least = max(0, self._settings.min_new_tokens - len(self._ids))
        update = {"max_new_tokens": tokens, "min_new_tokens": min(least, tokens)}
        return self._settings.sampling.model_copy(update=update)

    def _passes(self, score: float) -> bool:
        return score < self._settings.toxicity_threshold

    def _late(self) -> bool:
        return time.monotonic() >= self._deadline

    def _check_begun(self) -> None:
        if not self._blocks:
            raise DeadlineError(f"no block was scored within {self._settings.deadline:g} s")
