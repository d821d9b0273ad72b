"""What a baseline is: another detoxification system, run on the same prompts and seeds as TIDE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, ValidationError

from tide.config import Sampling, one_line
from tide.engines.base import Completion
from tide.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self

# Temperature, top-p and top-k first and then the shift, or the shift first.
Order = Literal["warp-shift", "shift-warp"]


@dataclass(frozen=True)
class Generated:
    """One completion of a baseline, and what it cost.

    evaluations: completions generated to get it. forward_tokens: tokens that passed through any
    model: prompt and generated, of every pass and every auxiliary model, up to its own end.
    scorer_calls: texts sent to the scorer.
    """

    completion: Completion
    evaluations: int
    forward_tokens: int
    scorer_calls: int


@runtime_checkable
class Baseline(Protocol):
    """A detoxification system. name: normalised spec, for records."""

    name: str

    def config(self) -> dict[str, Any]:
        """All that decides its output beside model and sampling, fit for JSON."""
        ...

    def generate(
        self, prompts: Sequence[str], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Generated]:
        """One completion for each prompt, in order; what is drawn depends on its own seed alone.

        Raises InputError for a prompt that is empty or too long, and what the scorer raises.
        """
        ...

    def close(self) -> None: ...


class Options(BaseModel):
    """Settings of one baseline, as written in its spec. strength: the one that scales its effect.

    At strength 0 a baseline writes what the model itself does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    strength: ClassVar[str]

    @classmethod
    def of(cls, name: str, settings: dict[str, str]) -> Self:
        """Validated settings. Raises InputError naming the setting and what there is."""
        unknown = settings.keys() - cls.model_fields.keys()
        if unknown:
            known = ", ".join(cls.model_fields)
            raise InputError(f"baseline {name}: no setting {min(unknown)!r}; known: {known}")
        try:
            return cls(**settings)
        except ValidationError as error:
            raise InputError(f"baseline {name}: {one_line(error)}") from None

    def spec(self, name: str) -> str:
        """`name` with its strength and every other setting that differs from its default."""
        shown = [
            f"{key}={_written(getattr(self, key))}"
            for key, field in type(self).model_fields.items()
            if key == self.strength or getattr(self, key) != field.default
        ]
        return f"{name}:{','.join(shown)}"


def _written(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
