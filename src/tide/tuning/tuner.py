"""Tunes settings on some prompts, writes them as a preset, and reports on other prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from tide.core.errors import InputError, MissingDependencyError
from tide.core.settings import Settings
from tide.data.files import replaced, write_text, writing
from tide.data.jsonl import read_object
from tide.detoxifier.presets import refuse_looser, write_preset
from tide.engines import Engine
from tide.evaluation import Benchmark, Report, report
from tide.evaluation.benchmarks import open_benchmark, places
from tide.evaluation.comparison import AnyScorer, open_engine, open_scorer
from tide.evaluation.methods import check_method
from tide.evaluation.perplexity import Reference, reference_named
from tide.evaluation.progress import Progress
from tide.evaluation.protocols import load_protocol
from tide.evaluation.reporting.tables import WRITERS, Column, Table, slug
from tide.plugins.specs import parse_spec
from tide.tuning.settings import SEARCHES, TuningSettings
from tide.tuning.study import Bench, TuningTrial, by_grid, by_tpe, figures

if TYPE_CHECKING:
    from tide.tuning.settings import TuningOverrides

_CONFIG = "tune.json"
_SHOWN, _FEW = 10, 4  # rows and varied settings of a table on a terminal


@dataclass(frozen=True)
class Tuned:
    """The result of `tune`. preset: file of the chosen settings. tried: all trials, the best first.

    report: comparison of the chosen settings with the settings before tuning, on other prompts.
    changed: whether both settings differ. problem: reason why there are no figures, if any.
    """

    preset: Path
    settings: Settings
    tried: list[TuningTrial]
    changed: bool
    report: Report
    problem: str | None = None
    plots: dict[str, Any] = dataclass_field(default_factory=dict, repr=False)

    def table(self, rows: int | None = _SHOWN) -> Table:
        """Make a table of the best `rows` settings: measures, and values if few or rows is None."""
        first = self.tried[0]
        names = [name for name in first.values if rows is None or len(first.values) <= _FEW]
        headings = {"evaluations": "evals", "num_samples": "N"}
        columns = [
            Column("place"),
            *(Column(headings.get(name, name), 3) for name in first.measures),
            *(Column(headings.get(name, name), 4, key=name) for name in names),
        ]
        values = [
            [place, *one.measures.values(), *map(one.values.get, names)]
            for place, one in enumerate(self.tried[:rows], start=1)
        ]
        title = f"settings tried: the first {len(values)} of {len(self.tried)}"
        return Table("tried", title, columns, values, [f"chosen: {first.method}"])


def tune(
    benchmark: str | Path | Benchmark = "rtp",
    *,
    model: str | Path | Engine = "pocket",
    scorer: AnyScorer = "pocket",
    judges: Sequence[AnyScorer] = (),
    protocol: str = "tide",
    reference: str = "auto",
    out: str | Path | None = None,
    engine: str = "transformers",
    engine_options: Mapping[str, Any] | None = None,
    field: str = "prompt",
    limit: int | None = None,
    chat: bool = False,
    progress: Progress | None = None,
    **settings: Unpack[TuningOverrides],
) -> Tuned:
    """Choose settings for a model on some prompts of a benchmark, and report on other prompts.

        tuned = tune("rtp", search="optuna", judges=["profanity-check", "lexicon"])
        detox = Detoxifier(preset=tuned.preset)

    Args:
        benchmark: A name or a file.
        model: As for `Detoxifier`.
        scorer: Scorer of the search.
        judges: As for `evaluate`.
        protocol: As for `evaluate`.
        reference: As for `evaluate`.
        out: By default `runs/tune-SEARCH-BENCHMARK-MODEL`. An interrupted call is resumed.
        engine: Engine of `model`.
        engine_options: Options of `engine`.
        field: As for `evaluate`.
        limit: As for `evaluate`.
        chat: As for `evaluate`.
        progress: As for `evaluate`.
        **settings: `search`, `start`, `tune_on`, `report_on`, `worst`, `above`, `grid_scale` and
            `tries`, as `tide tune --help` describes them; and settings of the search, which are
            then not tuned.

    Returns:
        The chosen settings, all settings that were tried, and the comparison on the other prompts.

    Raises:
        InputError: An argument cannot be used, or `out` belongs to a different call.
        TideError: A prompt failed.
    """
    how, overrides = TuningSettings.of(settings)
    search = how.search
    usual, progress = how.start or SEARCHES[search], progress or Progress()
    prompts = open_benchmark(benchmark, field, limit, chat)
    chosen_on, held_out = _parts(prompts, how.tune_on, how.report_on)
    # Check the names before loading a model, which is slow.
    called = model.name if isinstance(model, Engine) else str(model)
    check_method(usual, called, load_protocol(protocol), overrides)
    if search == "optuna" and not judges:
        raise InputError("--judges: optuna needs a scorer that takes no part in the search")
    if search == "optuna" and reference_named(reference, called) in (None, "none"):
        raise InputError(
            "--reference: optuna needs the perplexity by a model: FOLDER_OR_HUB_ID, or auto if a "
            f"larger model of the family of {called} is known"
        )
    with ExitStack() as stack:
        shared = open_engine(model, engine, engine_options or {}, stack)
        guide = open_scorer(scorer, stack)
        outside = [open_scorer(judge, stack) for judge in judges]
        known = reference_named(reference, shared.name)
        by = Reference(known) if known and known != "none" else None
        if by is not None:
            stack.callback(by.close)
        name = slug(Path(shared.name).name)
        out = Path(out or Path("runs") / f"tune-{search}-{slug(prompts.name)}-{name}")
        preset = out / f"tuned-{name}.json"
        parse_spec(str(preset), "--out")  # the preset's path must be a valid method
        bench = Bench(usual, shared, guide, outside, by, protocol, out, overrides, progress)
        before = bench.settings(usual)
        refuse_looser(before)
        stack.enter_context(writing(out / _CONFIG))
        made_by = {
            **{"search": search, "start": usual, "model": shared.name, "protocol": protocol},
            "scorer": guide.scorer.name,
            "judges": [judge.scorer.name for judge in outside],
            "reference": by.name if by else None,
            "tuned_on": chosen_on.fingerprint,
            "reported_on": held_out.fingerprint,
            "settings": {key: str(value) for key, value in sorted(overrides.items())},
        }
        if search == "paper":
            hard = {"worst": how.worst} if how.above is None else {"above": how.above}
            _same(out / _CONFIG, {**made_by, **hard, "grid_scale": how.grid_scale})
            tried, study = by_grid(bench, chosen_on, how), None
        else:
            _same(out / _CONFIG, made_by)
            tried, study = by_tpe(bench, chosen_on, how.tries, before.seed)
        chosen = bench.settings(tried[0].method)
        about = {
            **{"model": shared.name, "scorer": guide.scorer.name, "benchmark": prompts.name},
            **{"prompts": len(chosen_on.rows), "search": search, "tried": len(tried)},
            "tide-detox": version("tide-detox"),
        }
        write_preset(preset, chosen, about)
        runs = bench.runs(held_out, ["base", usual], "held-out")
        if changed := chosen != before:
            # A later call may choose other settings, whose runs need another folder.
            mine = f"held-out-{blake2b(repr(chosen).encode(), digest_size=4).hexdigest()}"
            runs += bench.runs(held_out, [str(preset)], mine)
    folder = out / "report"
    made = report(runs, out=folder, against=runs[1].name, tests=changed)
    plots, problem = ({}, made.problem) if study is None else _plots(study, folder)
    tuned = Tuned(preset, chosen, tried, changed, made, problem, plots)
    for suffix, written in WRITERS.items():
        write_text(folder / f"tried{suffix}", written(tuned.table(None)))
    return tuned


def _plots(study: Any, folder: Path) -> tuple[dict[str, Any], str | None]:
    """Draw and write Optuna's figures. Returns the figures, and the reason if there are none."""
    try:
        drawn = figures(study)
    except MissingDependencyError as error:
        return {}, f"no figures: {error}"
    for name, figure in drawn.items():
        with replaced(folder / f"{name}.png") as file:
            figure.savefig(file, format="png", dpi=150, bbox_inches="tight")
    return drawn, None


def _parts(
    prompts: Benchmark, tune_on: str | None, report_on: str | None
) -> tuple[Benchmark, Benchmark]:
    """Split the prompts into two disjoint parts, to tune on and to report on."""
    count = len(prompts.rows)
    first = set(places("--tune-on", tune_on or f"1-{(count + 1) // 2}", count))
    second = set(places("--report-on", report_on or f"1-{count}", count))
    if report_on is None:
        second -= first
    if not second:
        raise InputError(f"--tune-on: leaves none of the {count} prompts to report on")
    if both := first & second:
        raise InputError(f"--report-on: prompt {min(both)} is also used for tuning")

    def part(kept: set[int]) -> Benchmark:
        return replace(prompts, rows=[r for i, r in enumerate(prompts.rows, 1) if i in kept])

    return part(first), part(second)


def _same(path: Path, config: dict[str, Any]) -> None:
    """Write the configuration. Raises InputError if the folder has another configuration."""
    config = json.loads(json.dumps(config))
    before = read_object(path) if path.is_file() else config
    for name in [*config, *before]:
        if before.get(name) != config.get(name):
            raise InputError(
                f"{path.parent}: was made with {name} = {before.get(name)!r}, this call has "
                f"{config.get(name)!r}; write elsewhere"
            )
    write_text(path, json.dumps(config, indent=2) + "\n")
