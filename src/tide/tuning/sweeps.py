"""What one setting does: the paper's tables of sensitivity, for any method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tide.core.errors import InputError
from tide.core.settings import Settings
from tide.engines import Engine
from tide.evaluation import Benchmark, Run, evaluate
from tide.evaluation.methods import load_method
from tide.evaluation.protocols import load_protocol
from tide.evaluation.reporting.tables import slug
from tide.tuning.bench import with_values
from tide.tuning.published import SWEEPS

# Swept in multiples of what the method has; the other name that it may have it by.
_MULTIPLIED = {"mu": "mu_relative", "step_size": "step_relative"}


def sweep(
    setting: str,
    benchmark: str | Path | Benchmark | Sequence[str] = "rtp",
    method: str = "tide",
    *,
    values: Sequence[float] | None = None,
    model: str | Path | Engine = "pocket",
    protocol: str = "tide",
    preset: str | Path = "auto",
    out: str | Path | None = None,
    **further: Any,
) -> list[Run]:
    """Run a method with each of several values of one setting, everything else being equal.

        runs = sweep("num_samples", judges="sentence", limit=100)
        report(runs)

    Args:
        setting: A setting of the search, or an option of the method.
        benchmark: As for `evaluate`.
        method: Its spec.
        values: By default those of the paper, if it varied the setting. Values of `mu` and
            `step_size` are multiples of what the method has.
        model: As for `Detoxifier`.
        protocol: As for `evaluate`.
        preset: What the method starts from.
        out: By default `runs/sweep-SETTING-BENCHMARK-MODEL`.
        **further: As for `evaluate`.

    Returns:
        One run per value.

    Raises:
        InputError: As `evaluate` raises.
    """
    values = values or SWEEPS.get(setting)
    if values is None:
        known = ", ".join(SWEEPS)
        raise InputError(f"--values: needed for {setting!r}; there are some for {known}")
    name = model.name if isinstance(model, Engine) else str(model)
    key, unit = setting, 1.0
    if setting in _MULTIPLIED:
        common = {key: value for key, value in further.items() if key in Settings.model_fields}
        # Only asked for its settings: nothing is loaded.
        rules = load_protocol(protocol)
        has = load_method(method, name, "pocket", rules, common, preset=preset).settings
        key = setting if getattr(has, setting) is not None else _MULTIPLIED[setting]
        unit = getattr(has, key)
    numbers = [float(f"{value * unit:.6g}") for value in values]
    specs = [with_values(method, {key: int(n) if n.is_integer() else n}) for n in numbers]
    if out is None:
        on = benchmark.name if isinstance(benchmark, Benchmark) else "prompts"
        on = Path(benchmark).name.partition(".")[0] if isinstance(benchmark, str | Path) else on
        out = Path("runs") / slug(f"sweep-{setting}-{on}-{Path(name).name}")
    return evaluate(
        benchmark,
        specs,
        model=model,
        protocol=protocol,
        preset=preset,
        out=out,
        **further,
    )
