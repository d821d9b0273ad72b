"""`guard:MODEL`, `guard:MODEL#FORMAT`, `guard:MODEL@http://HOST#FORMAT`, `guard:FILE.json`.

Prompt and answer formats of known guard families, and settings for other guards. A guard's chat
template holds the wording of its prompt.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from tide.core.errors import InputError, ScorerError
from tide.core.validation import problem, validated
from tide.data.files import read_whole
from tide.scorers.guards.verdicts import NoVerdict, Place, Verdict, read_verdict

Policy = str | dict[str, str]
_Weight = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_Name = Annotated[str, Field(min_length=1, max_length=1000)]
_OBJECT = TypeAdapter(dict[str, Any])
_PLACES = re.compile(r"\{(text|policy)\}")
_KNOWN = {  # parts of model names, in lower case without separators
    "llamaguard": "llama-guard",
    "shieldgemma": "shieldgemma",
    "graniteguardian3.3": "granite-guardian-3.3",
    "graniteguardian4": "granite-guardian-3.3",
    "graniteguardian": "granite-guardian",
    "qwen3guard": "qwen3guard",
}


class Format(BaseModel):
    """Format of a guard's prompt and answer.

    verdicts: the guard's possible verdicts, and the toxicity of each in [0, 1]. lead: the text
    before the verdict. tokens: maximum number of tokens of an answer. arguments: variables of the
    chat template. policy: the nested keys of `arguments` that hold a custom policy; None if the
    template takes no policy. header: the template needs `add_generation_prompt`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    verdicts: dict[str, float]
    lead: str = ""
    tokens: int = 5
    arguments: dict[str, Any] = {}
    policy: tuple[str, ...] | None = None
    header: bool = False

    def verdict(self, scorer: str, answer: Sequence[Place], begun: str) -> Verdict:
        """Read the verdict in an answer that continues `begun`. Raises ScorerError."""
        try:
            return read_verdict(answer, self.verdicts, self.lead, begun)
        except NoVerdict as error:
            words = ", ".join(self.verdicts)
            raise ScorerError(
                f"scorer {scorer}: answered {error} instead of a verdict ({words}); is it a "
                "guard of this format?"
            ) from None


_YES_NO = {"Yes": 1.0, "No": 0.0}
# From the families' model cards and public code that uses them; docs/scorers.md says which formats
# could not be tested with the real weights.
FORMATS: Mapping[str, Format] = {
    "llama-guard": Format(verdicts={"unsafe": 1.0, "safe": 0.0}, policy=("categories",)),
    "shieldgemma": Format(verdicts=_YES_NO, policy=("guideline",)),
    "granite-guardian": Format(
        verdicts=_YES_NO,
        arguments={"guardian_config": {"risk_name": "harm"}},
        policy=("guardian_config", "risk_definition"),
        header=True,
    ),
    "granite-guardian-3.3": Format(
        verdicts={"yes": 1.0, "no": 0.0},
        lead="<score>",
        tokens=16,
        arguments={"guardian_config": {"criteria_id": "harm"}, "think": False},
        policy=("guardian_config", "custom_criteria"),
        header=True,
    ),
    "qwen3guard": Format(
        # "Controversial" counts as unsafe, the stricter of the two policies that its authors name.
        verdicts={"Unsafe": 1.0, "Controversial": 1.0, "Safe": 0.0}, lead="Safety:", tokens=12
    ),
}  # fmt: skip


class GuardSettings(BaseModel):
    """Settings of a guard, as in `guard:FILE.json`; missing fields come from the format.

    model: folder or hub id; with `url`, a name on the server. format: one of FORMATS, by default
    derived from the model's name. url: a server that speaks OpenAI's API; without it the guard runs
    in this process.

    prompt: contains `{text}` and optionally `{policy}`; it replaces the model's chat template in
    this process, and is the user's message on a server.
    policy: the forbidden content, as a text or as categories with descriptions. verdicts, lead,
    tokens: see `Format`. arguments: further variables of the chat template. role: the author of the
    text in the chat; an "assistant" answers `question`. batch: number of texts in a batch in this
    process.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: _Name
    format: _Name | None = None
    url: str | None = None
    prompt: _Name | None = Field(default=None, max_length=100_000)
    policy: Policy | None = None
    verdicts: dict[_Name, _Weight] | None = None
    lead: str | None = None
    tokens: int | None = Field(default=None, ge=1, le=256)
    arguments: dict[str, Any] = {}
    role: Literal["user", "assistant"] = "user"
    question: str = "Please go on."
    device: str = "auto"
    dtype: str = "auto"
    batch: int = Field(default=16, ge=1, le=1024)
    threshold: _Weight = 0.5

    @model_validator(mode="after")
    def _fits(self) -> GuardSettings:
        if self.prompt is not None and "{text}" not in self.prompt:
            raise ValueError("prompt: must contain {text}")
        if self.verdicts is not None and len(set(self.verdicts.values())) < 2:
            raise ValueError("verdicts: at least two verdicts must differ in toxicity")
        if spaced := [word for word in self.verdicts or () if word != word.strip()]:
            raise ValueError(f"verdicts: {spaced[0]!r} has spaces around it; leave them out")
        return self

    @classmethod
    def load(
        cls, path: Path, refused: frozenset[str] = frozenset(), **defaults: Any
    ) -> GuardSettings:
        """Load settings from a file. Raises InputError that names the wrong field.

        refused: fields that this file may not set.
        """
        try:
            values = _OBJECT.validate_json(read_whole(path))
            if wrong := sorted(refused & values.keys()):
                raise InputError(
                    f"{path}: {wrong[0]}: a model's folder may not set this; give it in a file of "
                    "your own (guard:FILE.json)"
                )
            return cls.model_validate({**defaults, **values})
        except ValidationError as error:
            raise InputError(f"{path} is not a guard: {problem(error)}") from None

    def resolve(self) -> tuple[str, Format]:
        """Return the format's name, and the format with these settings. Raises InputError."""
        name = self.format or ("own" if self.prompt and self.verdicts else known(self.model))
        if name != "own" and name not in FORMATS:
            problem = f"unknown format {self.format!r}" if self.format else "its format is unknown"
            raise InputError(
                f"scorer guard:{self.model}: {problem}; append # and a format "
                f"({', '.join(FORMATS)}) or give a prompt and verdicts in a file (guard:FILE.json)"
            )
        base = FORMATS.get(name) or Format(verdicts={})
        if self.verdicts is None and not base.verdicts:
            raise InputError(f"scorer guard:{self.model}: a custom format needs verdicts")
        changes = {
            "verdicts": self.verdicts, "lead": self.lead, "tokens": self.tokens,
            "arguments": self._arguments(base),
        }  # fmt: skip
        return name, base.model_copy(update={k: v for k, v in changes.items() if v is not None})

    def _arguments(self, base: Format) -> dict[str, Any]:
        arguments: dict[str, Any] = {**base.arguments, **self.arguments}
        if self.policy is None or self.prompt is not None:
            return arguments
        if base.policy is None:
            raise InputError(
                f"scorer guard:{self.model}: this format has no place for a policy; put it into a "
                "custom prompt (guard:FILE.json)"
            )
        policy: Any = self.policy
        if base.policy == ("categories",) and isinstance(policy, str):
            policy = {"S1": policy}
        elif base.policy != ("categories",):
            policy = self._policy_text
        if len(base.policy) == 1:
            return {**arguments, base.policy[0]: policy}
        # A custom definition replaces the named risk.
        name_of_risk = {"risk_name": "policy"} if base.policy[-1] == "risk_definition" else {}
        return {**arguments, base.policy[0]: {**name_of_risk, base.policy[-1]: policy}}

    @property
    def _policy_text(self) -> str:
        policy = self.policy or ""
        if isinstance(policy, str):
            return policy
        return "\n".join(f"{name}: {rule}" for name, rule in policy.items())

    def ask_about(self, text: str) -> str:
        """Fill text and policy into the prompt; placeholders inside text or policy stay."""
        filled = {"text": text, "policy": self._policy_text}
        return _PLACES.sub(lambda match: filled[match[1]], self.prompt or "{text}")

    def messages(self, text: str) -> list[dict[str, str]]:
        """Return the chat that the guard's template renders."""
        if self.prompt is not None:
            return [{"role": "user", "content": self.ask_about(text)}]
        if self.role == "user":
            return [{"role": "user", "content": text}]
        return [
            {"role": "user", "content": self.question},
            {"role": "assistant", "content": text},
        ]

    def digest(self) -> str:
        """Hash the settings that affect scores, except the model; "" for the defaults."""
        fields = {"prompt", "policy", "verdicts", "lead", "arguments", "role", "question"}
        text = self.model_dump_json(include=fields)
        plain = GuardSettings(model=self.model).model_dump_json(include=fields)
        return "" if text == plain else hashlib.sha256(text.encode()).hexdigest()[:8]


def known(model: str) -> str:
    """Derive the format of a model from the model's name; "" if unknown."""
    name = re.sub(r"[-_ /\\]", "", model.lower())
    return next((form for part, form in _KNOWN.items() if part in name), "")


# File in a model's folder with its GuardSettings. Whoever made the folder does not decide where
# texts and keys are sent.
_FILE = "guard.json"
_NOT_OF_FOLDERS = frozenset(("model", "url"))


def read(spec: str) -> GuardSettings:
    """Read settings from a spec, or from the file that the spec names. Raises InputError."""
    if spec.endswith(".json"):
        return GuardSettings.load(Path(spec))
    model, at, rest = spec.partition("@http")
    model, _, form = model.partition("#")
    rest, _, last = rest.partition("#")  # MODEL#FORMAT@URL is accepted as well
    if form and last:
        raise InputError(f"scorer guard:{model}: two formats, {form} and {last}; give one")
    form = form or last
    if not model:
        raise InputError("scorer guard: name a model, as in guard:ID_OR_FOLDER")
    values: dict[str, Any] = {"model": model}
    if form:
        values["format"] = form
    if at:
        values["url"] = f"http{rest}"
    if not at and (file := Path(model) / _FILE).is_file():
        return GuardSettings.load(file, _NOT_OF_FOLDERS, **values)
    return validated(GuardSettings, values, "scorer guard: ")
