"""What settings are tried with, and what is kept of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tide.core.errors import TideError
from tide.core.settings import Settings
from tide.data.records import RecordId
from tide.evaluation import Benchmark, Run, evaluate
from tide.evaluation.caching_engine import CachingEngine
from tide.evaluation.judges import NamedScorer
from tide.evaluation.methods import load_method
from tide.evaluation.perplexity import Reference
from tide.evaluation.progress import Progress
from tide.evaluation.protocols import load_protocol
from tide.plugins.specs import format_spec, parse_spec


@dataclass(frozen=True)
class TuningTrial:
    """A setting that was evaluated. values: what was varied. measures: each the better the lower.

    method: its spec, as `evaluate` takes it.
    """

    method: str
    values: dict[str, Any]
    measures: dict[str, float]


@dataclass(frozen=True)
class Bench:
    """A model, a scorer and all else that settings are tried with, loaded once.

    usual: the method that is tuned, as it is without. judges: scorers that the search does not see.
    out: the folder of all runs. overrides: settings that are not tried.
    """

    usual: str
    engine: CachingEngine
    scorer: NamedScorer
    judges: Sequence[NamedScorer]
    reference: Reference | None
    protocol: str
    out: Path
    overrides: Mapping[str, Any]
    progress: Progress

    def runs(
        self,
        prompts: Benchmark,
        methods: Sequence[str],
        folder: str,
        *,
        judged: bool = True,
        counted: tuple[int, int] | None = None,
        **settings: Any,
    ) -> list[Run]:
        """The runs of `methods` in a folder of their own; what is there is kept.

        judged: by the judges and the reference, too. counted: the number of a try, and of how many.
        Raises TideError where a prompt failed: averages over other prompts do not compare.
        """
        made = evaluate(
            prompts,
            methods,
            model=self.engine,
            scorer=self.scorer,
            judges=self.judges if judged else [],
            protocol=self.protocol,
            reference=self.reference if judged and self.reference else "none",
            out=self.out / folder,
            progress=_Counted(self.progress, *counted) if counted else self.progress,
            **{**self.overrides, **settings},
        )
        for run in made:
            for error in run.failed.values():
                raise TideError(
                    f"{run.name}: {len(run.failed)} prompts failed ({error}); the same command "
                    "tries them again"
                )
        return made

    def settings(self, method: str) -> Settings:
        """All settings of a method. Raises InputError if they cannot be."""
        protocol, scorer = load_protocol(self.protocol), self.scorer.scorer
        return load_method(method, self.engine, scorer, protocol, self.overrides).settings


def with_values(method: str, values: Mapping[str, Any]) -> str:
    """The spec of a method with further options."""
    name, options = parse_spec(method, "methods")
    written = {key: f"{v:.6g}" if isinstance(v, float) else str(v) for key, v in values.items()}
    return format_spec(name, {**options, **written})


class _Counted(Progress):
    """Says beside each bar which try of how many it is of."""

    def __init__(self, inner: Progress, number: int, total: int) -> None:
        self._inner, self._place = inner, f"{number}/{total}"

    def begin(self, what: str, total: int) -> None:
        short = what if what.startswith(("judge", "perplexity")) else "search"
        self._inner.begin(f"{self._place} {short}", total)

    def advance(self, count: int = 1) -> None:
        self._inner.advance(count)

    def under_way(self, count: float) -> None:
        self._inner.under_way(count)

    def end(self) -> None:
        self._inner.end()

    def failed(self, what: str, row_id: RecordId, error: TideError) -> None:
        self._inner.failed(what, row_id, error)
