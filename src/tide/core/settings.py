"""Settings of a run: frozen, validated, and the same in the library and on the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Any, Literal, Self, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from tide.core.chat import Chat
from tide.core.errors import matching

OnUnresolved = Literal["best", "refuse", "raise"]
Treatment = Literal["scored", "ignored", "withheld"]
# What is done with text that fails, the strictest first.
OnFail = Literal["block", "repair", "flag"]
ACTIONS: tuple[OnFail, ...] = ("block", "repair", "flag")
DEFAULT = "default"  # in `on_fail`: all limits that are not named

# The upper bounds of fields keep float32 arithmetic finite and memory small, beyond any known use.
_Positive = Annotated[float, Field(gt=0, le=1e6)]
_Limit = Annotated[float, Field(gt=0, le=1)]
_Perturb = Annotated[
    str, matching(r"content|all|last:[1-9]\d{0,8}", "content, all or last:K, with K from 1")
]

# Logits divided by less than this overflow float32.
COLDEST = 1e-3

# The absolute and the relative field of each scale, and the default of the relative field.
SCALES = {("mu", "mu_relative"): 1.2, ("step_size", "step_relative"): 0.6}


DEFAULT_STRATEGY = "backtrack"

# Defaults for answers to chats. The authors of a model may advise another temperature.
CHAT_TOKENS, CHAT_TEMPERATURE = 512, 0.7
# Maximum length of an answer whose length its server decides.
SERVER_TOKENS = 100_000


class Sampling(BaseModel):
    """How the engine samples a completion."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_new_tokens: int = Field(
        default=20, ge=1, le=1_000_000, description="Maximum length of a completion, in tokens."
    )
    temperature: float = Field(
        default=0.1, ge=0, le=100, description="Sampling temperature; 0 is greedy."
    )
    top_p: float = Field(
        default=1.0, ge=1e-3, le=1, description="Probability mass of nucleus sampling; 1: off."
    )
    top_k: int = Field(
        default=0, ge=0, le=1_000_000, description="Sample only the k likeliest tokens; 0: off."
    )
    min_new_tokens: int = Field(
        default=0, ge=0, description="Minimum length of a completion, in tokens."
    )
    stop: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = Field(
        default=(),
        max_length=16,
        description="A completion ends before the first stop string; repeatable.",
    )
    repetition_penalty: float = Field(
        default=1.0,
        ge=0.01,
        le=100,
        description="Makes tokens of the prompt and the completion less likely; 1: off.",
    )
    server_fields: dict[str, Any] | None = Field(
        default=None,
        description="Fields of requests to the server of the engine openai, as a JSON object.",
    )

    @field_validator("server_fields", mode="before")
    @classmethod
    def _as_object(cls, fields: Any) -> Any:
        if not isinstance(fields, str):
            return fields
        if not fields:  # an option that was left empty
            return None
        values = json.loads(fields)
        if not isinstance(values, dict):
            raise ValueError("expected a JSON object")
        return values

    def limited(self, maximum: int, minimum: int) -> Self:
        """Return the sampling with other limits of length."""
        return self._changed({"max_new_tokens": maximum, "min_new_tokens": minimum})

    def _changed(self, values: Mapping[str, Any]) -> Self:
        """Replace fields; those that are unset still count as unset."""
        changed = {**dict(self), **values}
        return self.model_construct(_fields_set=self.model_fields_set, **changed)

    @field_validator("stop", mode="before")
    @classmethod
    def _as_tuple(cls, stop: Any) -> Any:
        return (stop,) if isinstance(stop, str) else stop

    @field_validator("min_new_tokens")
    @classmethod
    def _fits(cls, minimum: int, info: ValidationInfo) -> int:
        if minimum > (maximum := info.data.get("max_new_tokens", minimum)):
            raise ValueError(f"is more than max_new_tokens ({maximum})")
        return minimum

    def stop_in(self, text: str) -> int | None:
        """Return the index of the first stop string in `text`, or None if there is none."""
        indices = [text.find(stop) for stop in self.stop]
        return min((index for index in indices if index >= 0), default=None)

    @field_validator("temperature")
    @classmethod
    def _divides(cls, temperature: float) -> float:
        if 0 < temperature < COLDEST:
            raise ValueError(f"should be 0 (greedy), or at least {COLDEST}")
        return temperature


class Settings(Sampling):
    """Everything that decides the result of a run, apart from the model and the scorer.

    `mu` and `step_size` are absolute, in units of the input embeddings. `mu_relative` and
    `step_relative` are relative to the scale of the prompt, so that one value suits many models:
    `mu_relative = mu * sqrt(d) / row_norm`, `step_relative = step_size / row_norm`. Set at most
    one field of each pair; by default the relative field is used.

    Options of a single strategy are written in `strategy`, as in `backtrack:lag=2,pace=word`.
    """

    strategy: str = Field(
        default=DEFAULT_STRATEGY,
        description="Search strategy, with its own options after its name.",
    )
    toxicity_threshold: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="Accept a completion that scores below this (tau).",
    )
    thresholds: dict[str, _Limit] = Field(
        default={},
        max_length=100,
        description="Limits of the scorer's attributes, as in threat=0.1,profanity=0.9.",
    )
    on_fail: dict[str, OnFail] = Field(
        default={},
        max_length=100,
        description="Repair text that fails (default), block (end the answer before it), or flag "
        "it (give it out); for attributes with limits of their own, as in repair,threat=block.",
    )
    max_iterations: int = Field(
        default=10,
        ge=1,
        le=10_000,
        description="Maximum iterations of a search, the prompt included (K).",
    )
    num_samples: int = Field(
        default=8, ge=1, le=4096, description="Perturbations per gradient estimate (N)."
    )
    mu: _Positive | None = Field(
        default=None,
        description="Perturbation scale, in units of the input embeddings (mu).",
    )
    mu_relative: _Positive | None = Field(
        default=None,
        description="Perturbation scale, relative to the prompt: mu * sqrt(d) / row norm.",
    )
    step_size: _Positive | None = Field(
        default=None,
        description="Length of a step, in units of the input embeddings (eta).",
    )
    step_relative: _Positive | None = Field(
        default=None, description="Length of a step, relative to the prompt: eta / row norm."
    )
    perturb: _Perturb = Field(
        default="content",
        description="Which prompt tokens' embeddings to perturb: content (all but special tokens; "
        "of a chat, the last user message), last:K (the last K of these), or all.",
    )
    completions_per_evaluation: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Completions per evaluated point, whose score is their mean (M').",
    )
    reject_degenerate: bool = Field(
        default=False,
        description="Reject completions of a search that loop or have hardly any words, unless the "
        "completion of the unmodified prompt is like that, too.",
    )
    num_trials: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="Completions per prompt, each from its own search (M).",
    )
    seed: int = Field(
        default=0, ge=0, lt=1 << 63, description="Random seed; it fixes the result of a trial."
    )
    accept_empty: bool = Field(
        default=False,
        description="Accept completions of fewer than 3 visible ASCII characters unscored, as the "
        "paper's published code does.",
    )
    on_unresolved: OnUnresolved = Field(
        default="best",
        description="If nothing is accepted: return the lowest-scoring text (best), return no text "
        "(refuse), or raise an error (raise).",
    )
    refuse_prompt_above: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Generate nothing for a prompt that itself scores above this; in a chat, for a "
        "last user message or a later tool call or result.",
    )
    tool_calls: Treatment = Field(
        default="scored",
        description="Tool calls of the engine openai: given out if all their strings and keys "
        "pass (scored), always and unscored (ignored), or never (withheld).",
    )
    reasoning: Treatment = Field(
        default="withheld",
        description="Reasoning of the engine openai: scored, ignored or withheld, as tool calls.",
    )
    deadline: _Positive | None = Field(
        default=None, description="Time limit for one trial of a prompt, in seconds."
    )
    window_tokens: int = Field(
        default=50,
        ge=0,
        le=100_000,
        description="Number of earlier answer tokens that are scored together with new text.",
    )

    @field_validator("thresholds", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        """Read NAME=NUMBER,NAME=NUMBER, or a list of such texts."""
        limits = _read_pairs(value)
        if limits is None:
            return value
        if not all(name for name, _ in limits):
            raise ValueError("expected NAME=NUMBER,NAME=NUMBER, as in threat=0.1,profanity=0.9")
        return dict(limits)

    @field_validator("on_fail", mode="before")
    @classmethod
    def _by_limit(cls, value: Any) -> Any:
        """Read ACTION,NAME=ACTION, or a list of such texts."""
        actions = _read_pairs(value)
        if actions is None:
            return value
        return {name or DEFAULT: action for name, action in actions}

    @model_validator(mode="after")
    def _has_limits(self) -> Settings:
        for name in self.on_fail:
            if name != DEFAULT and name not in self.thresholds:
                raise ValueError(f"on_fail: {name} has no limit; add thresholds: {name}=0.1")
        return self

    @model_validator(mode="before")
    @classmethod
    def _one_scale_each(cls, values: dict[str, Any]) -> dict[str, Any]:
        for (absolute, relative), default in SCALES.items():
            if values.get(absolute) is not None and values.get(relative) is not None:
                raise ValueError(f"give {absolute} or {relative}, not both")
            if values.get(absolute) is None and values.get(relative) is None:
                values = {**values, relative: default}
        return values

    def passes(self, score: float) -> bool:
        """Whether a text of this score is accepted."""
        return score < self.toxicity_threshold

    def action(self, failed: Sequence[str]) -> OnFail:
        """Return what is done with a text that reaches these limits: the strictest action."""
        usual = self.on_fail.get(DEFAULT, "repair")
        actions = {self.on_fail.get(name, usual) for name in failed} or {"repair"}
        return next(action for action in ACTIONS if action in actions)

    def in_parts(self, prompt: str | Chat | None) -> bool:
        """Whether the answer may hold more than text; the answer is then drawn as a whole."""
        return isinstance(prompt, Chat) and (prompt.in_parts or self.reasoning != "withheld")

    def for_chat(self, advised: Mapping[str, Any]) -> Settings:
        """Replace unset fields by the defaults for chats.

        advised: sampling settings that the model's authors advise; ignored if the temperature is
        set.
        """
        values: dict[str, Any] = {"max_new_tokens": CHAT_TOKENS}
        if "temperature" not in self.model_fields_set:
            values |= {"temperature": CHAT_TEMPERATURE, **advised}
        return self._with_unset(values)

    def for_server(self) -> Settings:
        """Leave an unset length to the server."""
        return self._with_unset({"max_new_tokens": SERVER_TOKENS})

    def within(self, tokens: int) -> Settings:
        """Cap `max_new_tokens` at `tokens` if `max_new_tokens` is unset."""
        return self._with_unset({"max_new_tokens": max(1, min(tokens, self.max_new_tokens))})

    def _with_unset(self, values: Mapping[str, Any]) -> Settings:
        chosen = self.model_fields_set
        return self._changed({name: values[name] for name in values.keys() - chosen})


def _read_pairs(value: Any) -> list[tuple[str, str]] | None:
    """Return the pairs of NAME=VALUE,NAME=VALUE, or of a list of such texts; None for others.

    The name of a VALUE alone is empty.
    """
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        return None
    items = [item.rpartition("=") for text in texts for item in text.split(",")]
    return [(name.strip(), setting.strip()) for name, _, setting in items]


class Overrides(TypedDict, total=False):
    """The fields of `Settings` as keyword arguments, for type checkers."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_new_tokens: int
    stop: str | Sequence[str]
    repetition_penalty: float
    server_fields: dict[str, Any] | None
    strategy: str
    toxicity_threshold: float
    thresholds: dict[str, float]
    on_fail: OnFail | dict[str, OnFail]
    max_iterations: int
    num_samples: int
    mu: float | None
    mu_relative: float | None
    step_size: float | None
    step_relative: float | None
    perturb: str
    completions_per_evaluation: int
    reject_degenerate: bool
    num_trials: int
    seed: int
    accept_empty: bool
    on_unresolved: OnUnresolved
    refuse_prompt_above: float | None
    tool_calls: Treatment
    reasoning: Treatment
    deadline: float | None
    window_tokens: int


def derive_seed(*parts: int | str) -> int:
    """Derive a 63-bit seed; distinct `parts` give independent seeds, equal on every platform.

    The seeds of a trial are derived from (seed, prompt, trial) alone, so the result of a trial does
    not depend on the batch, the order, or a restart.
    """
    digest = blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
