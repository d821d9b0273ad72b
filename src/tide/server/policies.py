"""Policies (named sets of scorer, settings and mode), and the API keys that may use them.

Policies come from a file (`tide serve --policies FILE`). Without a file, the options of the command
line make one policy. All policies share the engine. When the file is read again, later requests get
the new policies, and running requests keep the old policies.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack
from weakref import WeakValueDictionary, finalize

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tide.core.errors import InputError, ScorerError, TideError, guarded, matching, problem, require
from tide.core.settings import DEFAULT, OnFail, Settings, Treatment
from tide.data.files import as_text, read_whole
from tide.detoxifier.asynchronous import AsyncDetoxifier
from tide.detoxifier.presets import preset_name, preset_values
from tide.plugins.specs import Spec, parse, parse_spec
from tide.scorers import DEFAULT_SCORER, REGISTRY, load_scorer
from tide.scorers.base import ScorerWrapper, close_scorer, is_blank, is_nearly_empty
from tide.scorers.languages import load_identifier
from tide.scorers.words import NeverScorer
from tide.scorers.wrappers import MaxScorer
from tide.search import resolve_settings
from tide.server.gate import KEYS, digest_of_key
from tide.server.limits import Limits
from tide.server.monitor import Draft, Forecast, forecast, write_draft
from tide.server.scoring import ScoringApi
from tide.server.telemetry import Budget, MeasuredScorer, Metrics

if TYPE_CHECKING:
    from pydantic import SecretStr

    from tide.core.chat import Chat
    from tide.core.results import Result
    from tide.core.settings import Overrides
    from tide.engines.base import Engine

Mode = Literal["enforce", "monitor"]
# Names appear in headers, logs and metrics.
_NAME_FORM = "up to 64 of a-z, A-Z, 0-9, '-', '_' and '.', the first a letter or digit"
Name = Annotated[str, matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", _NAME_FORM)]
_Limit = Annotated[float, Field(gt=0, le=1)]
_Share = Annotated[float, Field(gt=0, lt=1)]
REFUSE = "refuse"  # value of `on_scorer_failure`
ONLY = "default"  # name of the policy that the command line makes
_OnText = Callable[[str], None] | None


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Policy(_Part):
    """A policy of the file. The command line sets the fields that the policy leaves out.

    mode: "monitor" gives out the model's own text, and records what "enforce" would have changed.
    shadow: another policy, which scores the sent answers beside this one, and changes none.
    on_scorer_failure: while the scorer is down, "refuse", or a second scorer, which then decides.
    thresholds: limits of single attributes; a score that is the highest of the attributes then
    counts only the others. alter_at_most: the share of answers that may be altered; /metrics
    compares. repaired_mark: visible mark at the end of repaired answers. never: words and phrases
    that no text may contain. The other fields are as on the command line.
    """

    mode: Mode | None = None
    shadow: Name | None = None
    scorer: str | None = None
    on_scorer_failure: str | None = None
    preset: str | None = None
    strategy: str | None = None
    toxicity_threshold: _Share | None = None
    thresholds: Annotated[dict[str, _Limit], Field(max_length=100)] | None = None
    alter_at_most: _Share | None = None
    on_fail: OnFail | dict[str, OnFail] | None = None
    repaired_mark: Annotated[str, Field(max_length=64)] = ""
    refuse_prompt_above: Annotated[float, Field(ge=0, le=1)] | None = None
    tool_calls: Treatment | None = None
    reasoning: Treatment | None = None
    never: Annotated[list[str], Field(max_length=10_000)] = []


class Key(_Part):
    """An API key, given as its SHA-256 digest (`printf %s KEY | sha256sum`).

    policies: those that this key may use; the first is its default.
    """

    sha256: Annotated[str, matching(r"[0-9a-f]{64}", "64 hexadecimal digits, in lower case")]
    policies: Annotated[list[Name], Field(min_length=1)]


class PolicyFile(_Part):
    """Policies of `tide serve`, and the API keys that may use them.

    default: policies for the keys in TIDE_SERVE_KEYS, and for local clients if there are no keys;
    the file's first policy if left out. models: the policy of each model that requests name, in
    place of a key's first one; a key that may not use it keeps its first one.
    """

    policies: dict[Name, Policy] = Field(min_length=1)
    default: list[Name] = []
    keys: dict[Name, Key] = {}
    models: dict[str, Name] = {}

    @model_validator(mode="after")
    def _fits(self) -> PolicyFile:
        lists = {"default": self.default}
        lists |= {f"keys.{name}.policies": key.policies for name, key in self.keys.items()}
        lists |= {f"models.{model}": [name] for model, name in self.models.items()}
        lists |= {
            f"policies.{name}.shadow": [policy.shadow]
            for name, policy in self.policies.items()
            if policy.shadow is not None
        }
        for place, names in lists.items():
            for name in names:
                if name not in self.policies:
                    known = ", ".join(self.policies)
                    raise ValueError(f"{place}: unknown policy {name!r}; the file has: {known}")
        used: dict[str, str] = {}
        for name, key in self.keys.items():
            if bytes.fromhex(key.sha256) == digest_of_key(""):
                raise ValueError(f"keys.{name}.sha256: is the digest of an empty key")
            if (other := used.setdefault(key.sha256, name)) != name:
                raise ValueError(f"keys.{name}.sha256: is also the digest of {other}")
        return self

    @classmethod
    def read(cls, path: Path) -> PolicyFile:
        """Read a policy file. Raises InputError for an invalid file."""
        yaml = require("yaml", "gateway")
        try:
            text = as_text(read_whole(path), str(path))
            return cls.model_validate(_loader(yaml)(text).get_single_data())
        except InputError as error:
            raise InputError(f"--policies {error}") from None
        except ValidationError as error:
            reason = problem(error, "file")
            if reason.endswith("valid string"):
                reason += "; in YAML, 'on', 'off', 'yes', 'no' and numbers need quotes"
        except (yaml.YAMLError, ValueError) as error:  # a date that does not exist, for example
            reason = " ".join(str(error).split())
        raise InputError(f"--policies {path}: {reason}")


def _loader(yaml: Any) -> Any:
    """Return a safe loader that refuses equal names, the last of which would hide the others.

    Names are texts, even those (such as `on`) that YAML reads as another value.
    """

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def compose_mapping_node(self, anchor: Any) -> Any:
            # As written: constructing a mapping adds to it what `<<` merges.
            mapping = super().compose_mapping_node(anchor)
            names: list[Any] = []
            for name, _ in mapping.value:
                if name.value in names:
                    fix = "; write <<: [*first, *second]" if name.value == "<<" else ""
                    raise ValueError(f"{name.value}: is there twice{fix}")
                names.append(name.value)
                if name.value != "<<":
                    name.tag = self.DEFAULT_SCALAR_TAG
            return mapping

    return Loader


def _check_registered(kind: str, spec: Spec) -> None:
    """Raise InputError if a spec of a file names code, also within a wrapper."""
    if ":" in spec.name:
        raise InputError(
            f"{spec.name!r}: a file may only have registered names; give it as --{kind}"
        )
    for inner in spec.inner:
        _check_registered(kind, inner)


@dataclass(frozen=True)
class CommandLine:
    """Options of `tide serve` that policies default to. model: name that selects presets."""

    model: str = ""
    scorer: Any = DEFAULT_SCORER
    on_scorer_failure: str = REFUSE
    preset: str = "auto"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    mode: Mode = "enforce"
    alter_at_most: float | None = None

    def settings(self, policy: Policy) -> tuple[str, Settings]:
        """Return a policy's preset and settings. Raises InputError for invalid settings."""
        if policy.strategy is not None:
            _check_registered("strategy", Spec(parse_spec(policy.strategy, "strategy")[0]))
        chosen = policy.model_dump(include={*Settings.model_fields}, exclude_none=True)
        overrides = {**self.overrides, **chosen}
        preset = preset_name(policy.preset or self.preset, self.model, overrides.get("strategy"))
        settings = resolve_settings(preset_values(preset, self.model), overrides)
        if policy.never and settings.on_fail.get(DEFAULT) == "flag":
            raise InputError("never: text with these words cannot be flagged; set on_fail to block")
        is_unscored = is_nearly_empty if settings.accept_empty else is_blank
        for word in policy.never:
            if is_unscored(word):
                raise InputError(f"never: {word!r} has too few visible characters to be scored")
        return preset, settings

    def spec(self, policy: Policy) -> Any:
        """Return the scorer of a policy. Raises InputError for an invalid spec."""
        for name in ("scorer", "on_scorer_failure"):
            if (written := getattr(policy, name)) is not None:
                _check_registered(name, parse(written, name, REGISTRY.names()))
        spec = policy.scorer or self.scorer
        second = policy.on_scorer_failure or self.on_scorer_failure
        if second != REFUSE:
            spec = f"fallback:({spec}),({second})"
        return spec


class ServedDetoxifier(AsyncDetoxifier):
    """A policy's detoxifier, which also lets the model write unscored drafts.

    on_text: called with each part of the text as it is accepted, or for a draft, as it is written;
    perhaps in another thread.
    """

    async def answer(
        self, prompt: str | Chat, on_text: _OnText, **overrides: Unpack[Overrides]
    ) -> Result:
        """Complete one prompt, or answer a chat."""
        return await self._awaited(self._start(prompt, *self._resolve(overrides), on_text=on_text))

    async def draft(
        self, prompt: str | Chat, on_text: _OnText, **overrides: Unpack[Overrides]
    ) -> Draft:
        """Write the model's own text, unscored, for `forecast`."""
        settings, strategy = self._resolve(overrides)

        async def work() -> Draft:
            async with self._capacity:
                (task,) = await self._tasks(prompt, settings, strategy, [0], on_text)
                return await write_draft(task, self.engine)

        return await self._awaited(self._begin(work))

    async def forecast(
        self, prompt: str | Chat, draft: Draft, **overrides: Unpack[Overrides]
    ) -> Forecast:
        """Forecast the outcome that enforcing would have had for a draft.

        Raises PromptRefusedError if the prompt would have been refused, and ScorerError.
        """
        settings, strategy = self._resolve(overrides)
        on_text = (lambda _: None) if draft.is_stream else None

        async def work() -> Forecast:
            (task,) = await self._tasks(prompt, settings, strategy, [0], on_text)
            await self._check_prompt(prompt, task.settings)
            return await forecast(draft, task, self.engine, self._scoring)

        return await self._awaited(self._begin(work))


@dataclass(eq=False)
class ServedPolicy:
    """A policy with what the command line adds, and from `start` on, what answers requests.

    stated: the policy as the file has it. measured: the scorer without the words of `never`.
    """

    name: str
    stated: Policy
    mode: Mode
    preset: str
    settings: Settings
    measured: MeasuredScorer
    budget: Budget
    scorer: ScorerWrapper = field(init=False)
    detox: ServedDetoxifier = field(init=False)
    scoring: ScoringApi = field(init=False)

    def start(self, engine: Engine, limits: Limits) -> None:
        """Raises InputError for settings that the engine or the scorer does not support."""
        self.scorer = self.measured
        if self.stated.never:
            self.scorer = MaxScorer([self.measured, NeverScorer(self.stated.never)])
        self.detox = ServedDetoxifier(engine, scorer=self.scorer, settings=self.settings)
        self.scoring = ScoringApi(self.scorer, self.settings, limits)


@dataclass(frozen=True)
class Table:
    """The policies of one file.

    keys: name and policies of each key by its digest, the default policy first. models: the
    default policy of each model, where it has one.
    """

    policies: Mapping[str, ServedPolicy]
    default: tuple[ServedPolicy, ...]
    keys: Mapping[bytes, tuple[str, tuple[ServedPolicy, ...]]]
    models: Mapping[str, ServedPolicy]

    @property
    def usable(self) -> set[ServedPolicy]:
        """The policies that answer clients; others are only shadows of these."""
        usable = [policies for _, policies in self.keys.values()] or [self.default]
        return {policy for policies in usable for policy in policies}


def files_named_in(scorer: Any) -> Any:
    """Return the files that a spec names, with times and sizes. A change reloads the scorer."""
    parts = re.split(r"[:,=()#]", scorer) if isinstance(scorer, str) else []
    states = ((part, os.stat(part)) for part in parts if part and os.path.isfile(part))
    return tuple((part, state.st_mtime_ns, state.st_size) for part, state in states)


class Policies:
    """The policies of a server. path: policy file; without it, the command line makes one policy.

    keys: the keys of TIDE_SERVE_KEYS. Raises InputError for an invalid file.
    """

    engine: Engine

    def __init__(
        self,
        line: CommandLine,
        path: Path | None = None,
        *,
        limits: Limits | None = None,
        keys: Iterable[SecretStr] = (),
    ) -> None:
        self.limits, self.metrics = limits or Limits(), Metrics()
        self._line, self._path = line, path
        self._keys = [digest_of_key(key.get_secret_value()) for key in keys]
        # One scorer for each spec, closed when no policy uses it any more.
        self._scorers: WeakValueDictionary[Any, MeasuredScorer] = WeakValueDictionary()
        self._ends: list[finalize[Any, Any]] = []
        self.table = Table({}, (), {}, {})
        self.table = self._read()

    def start(self, engine: Engine) -> None:
        """Serve with `engine`. Raises InputError for settings that the engine does not support."""
        self.engine = engine
        self._start(self.table.policies.values())

    def reload(self) -> None:
        """Read the file again; only one thread may call this.

        Raises TideError and keeps the old policies if the file is invalid.
        """
        table = self._read()
        if self.table.keys and not table.keys:
            raise InputError(f"--policies {self._path}: keys: a reload cannot remove all keys")
        self._start({*table.policies.values()} - {*self.table.policies.values()})
        self.table = table

    def close(self) -> None:
        for end in self._ends:
            end()

    def _read(self) -> Table:
        """Read the file; policies that have not changed since are kept."""
        if self._path is None:
            file = PolicyFile(policies={ONLY: Policy()})
        else:
            file = PolicyFile.read(self._path)
        policies: dict[str, ServedPolicy] = {}
        for name, policy in file.policies.items():
            with self._naming(name):
                policies[name] = self._load(name, policy)
        default = tuple(policies[name] for name in file.default or list(policies)[:1])
        keys = dict.fromkeys(self._keys, (KEYS, default))
        for key_name, key in file.keys.items():
            usable = tuple(policies[name] for name in key.policies)
            keys[bytes.fromhex(key.sha256)] = (key_name, usable)
        models = {model: policies[name] for model, name in file.models.items()}
        return Table(policies, default, keys, models)

    def _load(self, name: str, policy: Policy) -> ServedPolicy:
        line = self._line
        preset, settings = line.settings(policy)
        mode = policy.mode or line.mode
        if policy.shadow is not None and mode == "monitor":
            raise InputError("shadow: needs mode enforce; monitor mode records by itself")
        measured = self._scorer(line.spec(policy))
        old = self.table.policies.get(name)
        if old is not None and old.stated == policy and old.measured is measured:
            return old
        budget = Budget(name, policy.alter_at_most or line.alter_at_most, self.metrics)
        return ServedPolicy(name, policy, mode, preset, settings, measured, budget)

    def _scorer(self, spec: Any) -> MeasuredScorer:
        """Load a scorer, or reuse it. Raises TideError if it cannot be loaded."""
        key = (spec, files_named_in(spec))
        measured = self._scorers.get(key)
        if measured is None:
            with guarded(ScorerError, "cannot be loaded"):
                loaded = load_scorer(spec)
            measured = MeasuredScorer(loaded, self.metrics)
            if measured.languages == ("en",):
                # For a second; the first answers would wait for it.
                with guarded(ScorerError, "the detection of languages cannot be loaded"):
                    load_identifier()
            self._scorers[key] = measured
            self._ends.append(finalize(measured, close_scorer, loaded))
        return measured

    def _start(self, policies: Iterable[ServedPolicy]) -> None:
        for policy in policies:
            with self._naming(policy.name):
                policy.start(self.engine, self.limits)

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        """Name the file and the policy in an error, unless the command line makes the policy."""
        try:
            yield
        except TideError as error:
            if self._path is None:
                raise
            raise InputError(f"--policies {self._path}: policies.{name}: {error}") from None
