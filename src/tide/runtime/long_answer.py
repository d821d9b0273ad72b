"""One long answer: drafted, and searched where a block of the draft fails."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial

import anyio

from tide.core.errors import DeadlineError
from tide.core.results import Block, ScoredCompletion, Trial
from tide.core.seeds import derive_seed
from tide.core.settings import Sampling
from tide.engines.base import Completion, Engine, FinishReason, Request
from tide.runtime.blocks import last_end
from tide.runtime.draft import Draft, DraftReader, Passage
from tide.runtime.scoring import Scoring
from tide.runtime.search import Memory, Search, TrialTask, made_trial, start_of
from tide.scorers.base import Scores, TextPolicy, is_blank, is_empty
from tide.scorers.wrappers.windows import split_words

# Blocks that are given up, one by one, where a search finds nothing.
_ROLLBACKS = 2
# Tokens that a search writes in place of a block, and in place of those that were given up besides:
# more cost more and pass less often, and a draft goes on after them anyway.
_SEARCHED = 10
# Blocks that a search may write anew.
_LONGEST_SEARCHED = 2
# Iterations after which a search gives up the block before, if it may, rather than go on.
_ITERATIONS = 5
# Words that are scored at once of a whole answer: see `WindowedScorer`.
_WINDOW = 100
# Seconds that the scorer has for the whole of an answer that was cut off by its deadline.
_GRACE = 1.0

_Sent = tuple[list[Passage], "asyncio.Future[Scores]"]


class LongAnswer:
    """One trial of a prompt in blocks.

    The model drafts the answer. Each block of it that the scorer accepts is kept; one that fails is
    replaced by a search after what was kept, and a new draft continues from there. If a search
    finds nothing, the previous block is dropped as well, at most two, and both are rewritten. At
    the end the whole is scored; if it fails, it is dropped from its worst block on.

    Where its parts are given out as they are kept, none is ever dropped.
    """

    def __init__(self, task: TrialTask, engine: Engine, scoring: Scoring) -> None:
        self._task, self._engine, self._scoring = task, engine, scoring
        self._prompt, self._settings, self._strategy = task.prompt, task.settings, task.strategy
        self._seed, self._on_text = task.seed, task.on_text
        policy = task.settings.empty_policy
        # A block is given out, however short it is.
        self._empty_policy: TextPolicy = "blank" if policy in ("unmodified", "zero") else policy
        # What was kept: its blocks, its tokens, the text that each adds, and how many of them stand
        # before each block.
        self._blocks: list[Block] = []
        self._ids: list[int] = []
        self._texts: list[str] = []
        self._starts: list[int] = []
        self._ended: FinishReason | None = None
        self._whole: float | None = None
        self._whole_attributes: list[dict[str, float]] = []  # of the windows it was scored in
        # What was tried since the last block, and the last that failed.
        self._spent: list[ScoredCompletion] = []
        self._rollbacks = 0
        self._failed: Block | None = None
        self._drafted_block: tuple[Completion, float] | None = None  # that failed last
        self._base: ScoredCompletion | None = None
        self._base_partial = False
        # Of texts as they stand; attributes are those of windows.
        self._scores: dict[str, float] = {}
        self._attributes: dict[str, dict[str, float]] = {}
        self._given_up = self._furthest = 0
        self._drafts = self._searches = self._rounds = 0
        self._drafted = self._searched = 0
        self._memory = Memory(engine.memory() if task.strategy.continues else None)
        self._never: tuple[int, ...] = ()
        self._iterations, self._scorer_calls, self._likelihood_calls = 1, 0, 0

    async def run(self) -> Trial:
        """Raises DeadlineError if no block was scored in time, UnresolvedError if so set."""
        seconds = self._settings.deadline
        with anyio.move_on_after(seconds) as scope:
            await self._write()
        if scope.cancelled_caught:
            if not self._blocks:
                raise DeadlineError(f"no block was scored within {seconds:g} s")
            # It ends with what was accepted.
            self._failed = None
            with anyio.move_on_after(_GRACE) as scope:
                await self._score_whole()
            if scope.cancelled_caught:
                raise DeadlineError(f"the answer was not scored within {seconds:g} s")
        return self._trial()

    async def _write(self) -> None:
        while True:
            # 1. The model drafts; each block is scored while it goes on, and kept.
            failed, context = not await self._draft(), self._settings.block_context
            most = _SEARCHED
            if not failed:
                # 2. The whole is scored; if that fails, all from its worst block on is given up.
                await self._score_whole()
                if self._settings.passes(self._whole or 0.0) or not (
                    lost := self._give_up(self._worst())
                ):
                    return
                # After less, what is wrong with the whole cannot be seen.
                most, context = max(most, lost), max(context, _WINDOW)
            # 3. A search writes in place of what failed; where it finds nothing, the block before
            #    is given up as well.
            while not await self._repair(most, context):
                lost = self._give_up(len(self._blocks) - 1)
                if not lost:
                    return
                most += lost

    def _trial(self) -> Trial:
        blocks = (*self._blocks, *([self._failed] if self._failed else []))
        final = self._evaluation(blocks, self._whole or 0.0)
        trace = (final,) if self._base is None else (self._base, final)
        return made_trial(
            self._task,
            trace,
            len(trace) - 1,
            passed=self._failed is None and self._settings.passes(final.toxicity),
            iterations=self._iterations,
            blocks=blocks,
            scorer_calls=self._scorer_calls,
            likelihood_calls=self._likelihood_calls,
            whole_toxicity=self._whole,
            drafted_tokens=self._drafted,
            searched_tokens=self._searched,
            read_tokens=self._memory.read_tokens,
            base_partial=self._base_partial,
            streamed=0 if self._on_text is None else len(self._blocks),
        )

    # What is written.

    async def _draft(self) -> bool:
        """Let the model go on, and keep its blocks; False where one failed."""
        settings, left = self._settings, self._settings.max_new_tokens - len(self._ids)
        if self._ended is not None or left == 0:
            return True
        seed = ("draft", self._drafts) if self._drafts else ("sampling", 0)
        self._drafts += 1
        failed_before = self._base is not None
        draft = Draft(
            list(self._texts),
            settings.block_tokens,
            settings.block_context,
            # Where one block has failed, others do, and what is written after them is lost.
            chunk=math.ceil(settings.draft_tokens / (3 if failed_before else 1)),
            careful=failed_before,
            stop=settings.stop,
        )
        prompt = self._prompt.token_ids + tuple(self._ids)
        request = Request(
            prompt,
            self._sampling(left),
            derive_seed(self._seed, *seed),
            never=self._never,
            priority=self._task.priority,
            memory=self._memory.handle,
            piece_tokens=max(1, draft.chunk // 4),
        )
        self._memory.read(prompt)
        try:
            passed = await self._keep_passing(draft, request)
        finally:
            self._memory.wrote(prompt + tuple(draft.token_ids))
            self._rounds += draft.chunks
            self._drafted += len(draft.token_ids)
            self._scorer_calls += len(draft.sent)
        if passed:
            self._ended = draft.ended
        return passed

    async def _keep_passing(self, draft: Draft, request: Request) -> bool:
        """Read the draft chunk by chunk, and keep the blocks that pass until one fails."""
        sent: _Sent | None = None
        try:
            async with aclosing(self._engine.write(request)) as pieces:
                reader = DraftReader(pieces)
                while draft.ended is None:
                    draft.add(*await reader.take(draft.next_chunk))
                    passages = draft.cut(self._engine.token_texts([draft.pending])[0])
                    before, sent = sent, self._send(passages)
                    if before is not None and not await self._keep_all(*before):
                        return False
                    if draft.waits or draft.ended is not None:
                        last, sent = sent, None
                        if not await self._keep_all(*last):
                            return False
            return True
        finally:
            if sent is not None:
                sent[1].cancel()

    def _send(self, passages: list[Passage]) -> _Sent:
        texts = [passage.text for passage in passages]
        before = [passage.context for passage in passages]
        return passages, self._scoring.send(texts, self._empty_policy, before)

    async def _keep_all(self, passages: list[Passage], sent: asyncio.Future[Scores]) -> bool:
        """Keep drafted blocks, in order, up to one that fails; whether none did."""
        scores = await sent
        return all(self._take(passage, scores, row) for row, passage in enumerate(passages))

    def _take(self, passage: Passage, scores: Scores, row: int) -> bool:
        """Keep a drafted block if it passes; returns whether it does. Skips unfinished ones."""
        score, empty = float(scores.values[row]), bool(scores.empty[row])
        passed = self._settings.passes(score)
        if passage.unfinished and (passed or empty):
            return True
        self._spent.append(
            ScoredCompletion(
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
                attributes=scores.known(row),
            )
        )
        self._scores[passage.context + passage.text] = score
        block = self._block(passage.context_tokens, len(self._spent) - 1)
        if passed:
            self._keep(block, passage.token_ids, passage.texts)
        else:
            self._failed = block
            if self._base is None:
                self._base = self._evaluation((*self._blocks, block), 0.0)
                self._base_partial = passage.last is None
            drafted = Completion(passage.text, passage.token_ids, passage.last or "length")
            self._drafted_block = None if empty else (drafted, score)
        return passed

    async def _repair(self, most: int, context_tokens: int) -> bool:
        """Search for up to `most` tokens; whether any was kept.

        context_tokens: tokens before them that are scored with them.
        """
        settings, before = self._settings, len(self._ids)
        left = settings.max_new_tokens - before
        # What goes on from a text begins with the one that failed.
        first, self._drafted_block = self._drafted_block, None
        first = first if self._strategy.continues else None
        if first is not None:
            most = max(most, len(first[0].token_ids))
        most = min(left, most, _LONGEST_SEARCHED * settings.block_tokens)
        seed = derive_seed(self._seed, "block", self._searches)
        self._searches += 1
        sampling = self._sampling(most)
        own = settings.model_copy(update=sampling.model_dump())
        if self._may_give_up():
            iterations = min(own.max_iterations, _ITERATIONS)
            own = own.model_copy(update={"max_iterations": iterations})
        start = start_of(self._prompt, own, seed, self._engine, self._strategy, tuple(self._ids))
        context = self._texts[max(0, before - context_tokens) :]
        search = Search(
            self._strategy.create(start.problem, own),
            start,
            self._engine,
            self._scoring,
            sampling,
            "unmodified" if self._empty_policy == "blank" else settings.empty_policy,
            priority=self._task.priority,
            context="".join(context),
            # Only at the end of what is wanted may a sentence be cut off.
            shape=partial(self._shaped, to_sentence=most < left),
            first_empty="blank",
            first=first,
            memory=self._memory,
            never=self._never,
        )
        try:
            await search.run()
        finally:
            self._searched += search.written_tokens
            self._scorer_calls += search.scorer_calls
            self._likelihood_calls += search.likelihood_calls
        best, rounds = search.best, self._rounds
        known = 0 if first is None else 1  # it is the last that was tried already
        tried = len(self._spent) - known
        self._iterations += search.iterations
        self._rounds += search.trace[-1].round
        self._spent += [
            one.model_copy(update={"round": rounds + one.round}) for one in search.trace[known:]
        ]
        block = self._block(len(context), tried + best)
        if not self._settings.passes(block.toxicity):
            self._failed = block
            return False
        self._scores[search.context + block.text] = block.toxicity
        ids = search.completions[best]
        if block.returned.role == "continuation":
            self._never = tuple(dict.fromkeys(self._never + search.held))
        self._keep(block, ids, self._engine.token_texts([ids])[0])
        if block.returned.finish_reason == "stop" or not ids:
            self._ended = "stop"
        return True

    async def _score_whole(self) -> None:
        """Score the answer as it stands, in windows."""
        windows = split_words("".join(block.text for block in self._blocks), _WINDOW)
        new = [text for text in dict.fromkeys(windows) if text not in self._scores]
        if new:
            # A window of marks alone says nothing of the others.
            policy: TextPolicy = "blank" if len(windows) > 1 else self._empty_policy
            scores = await self._scoring.send(new, policy)
            self._scores.update(zip(new, scores.values.tolist(), strict=True))
            said = ((row, text) for row, text in enumerate(new) if not scores.empty[row])
            self._attributes.update({text: scores.known(row) for row, text in said})
            self._scorer_calls += len(new)
        self._whole = max(self._scores[text] for text in windows)
        self._whole_attributes = [self._attributes[t] for t in windows if t in self._attributes]

    # What is kept and given up.

    def _keep(self, block: Block, ids: Sequence[int], texts: Sequence[str]) -> None:
        self._blocks.append(block)
        self._starts.append(len(self._ids))
        self._ids += ids
        self._texts += texts
        self._spent, self._rollbacks, self._failed = [], 0, None
        if len(self._ids) > self._furthest:
            self._given_up = 0
        if self._on_text is not None:
            self._on_text(block.text)

    def _give_up(self, to: int) -> int:
        """Drop the blocks from number `to` on; returns how many tokens they had, 0 if they stay."""
        if not self._may_give_up():
            return 0
        self._base = self._base or self._evaluation(self._blocks, self._whole or 0.0)
        self._furthest = max(self._furthest, len(self._ids))
        self._given_up += 1
        dropped, start, lost = self._blocks[to:], self._starts[to], len(self._ids)
        self._spent = [one for block in dropped for one in block.trace] + self._spent
        self._rollbacks += len(dropped)
        del self._blocks[to:], self._starts[to:], self._ids[start:], self._texts[start:]
        self._ended = self._whole = self._failed = None
        self._whole_attributes = []
        return max(lost - start, 1)

    def _may_give_up(self) -> bool:
        return bool(self._blocks) and self._on_text is None and self._given_up < _ROLLBACKS

    def _worst(self) -> int:
        return max(range(len(self._blocks)), key=lambda number: self._blocks[number].toxicity)

    # What it is made of.

    def _block(self, context_tokens: int, chosen: int) -> Block:
        return Block(
            context_tokens=context_tokens,
            rollbacks=self._rollbacks,
            chosen=chosen,
            trace=tuple(self._spent),
        )

    def _evaluation(self, blocks: Sequence[Block], whole: float) -> ScoredCompletion:
        """The answer that consists of these blocks, whose worst scores are its own."""
        parts, text = [block.returned for block in blocks], "".join(block.text for block in blocks)
        moved = [one for one in parts if one.role != "initial"]
        return ScoredCompletion(
            round=self._rounds or 1,
            iteration=self._iterations,
            role=moved[0].role if moved else "initial",
            text=text,
            toxicity=max(whole, *(one.toxicity for one in parts)),
            empty=self._is_empty(text),
            cosine=min(one.cosine for one in parts),
            displacement=max(one.displacement for one in parts),
            num_tokens=sum(one.num_tokens for one in parts),
            finish_reason=self._ended or "length",
            attributes=_worst_of(
                [*self._whole_attributes, *(one.attributes for one in parts if not one.empty)]
            ),
        )

    def _shaped(self, completion: Completion, *, to_sentence: bool) -> Completion:
        """A completion as it may follow what was kept; if cut off, up to a sentence end."""
        before = "".join(self._texts)
        stop = self._settings.stop_in(before + completion.text)
        if stop is not None and stop < len(before):
            # It begins in what was kept, of which nothing is taken back: the answer ends there.
            return Completion("", (), "stop")
        if not to_sentence or completion.finish_reason == "stop":
            return completion
        (texts,) = self._engine.token_texts([completion.token_ids])
        kept = last_end(texts, self._settings.stop)
        return Completion("".join(texts[:kept]), completion.token_ids[:kept], "length")

    def _sampling(self, tokens: int) -> Sampling:
        """That of up to so many further tokens."""
        least = max(0, self._settings.min_new_tokens - len(self._ids))
        update = {"max_new_tokens": tokens, "min_new_tokens": min(least, tokens)}
        return self._settings.sampling.model_copy(update=update)

    def _is_empty(self, text: str) -> bool:
        """Whether the policy scored it, and not the scorer."""
        if self._empty_policy == "blank":
            return is_blank(text)
        return is_empty(text) and self._empty_policy != "score"


def _worst_of(said: Sequence[dict[str, float]]) -> dict[str, float]:
    """The largest score of each attribute that is known of all parts."""
    shared = set.intersection(*map(set, said)) if said else set()
    return {name: max(one[name] for one in said) for name in sorted(shared)}
