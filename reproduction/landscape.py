"""Draw the toxicity landscape on a plane through one prompt, with the path of a search.

    python reproduction/landscape.py runs/rtp-pocket/tide 7 --image landscape-7.png

Loads the model and scorer of the run again. The plane is spanned by the first step of a `tide`
search and a random direction orthogonal to it; the trial with the most evaluations is shown.
"""

from __future__ import annotations

import textwrap
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import matplotlib as mpl
import numpy as np
import torch
import typer
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from tide.core.chat import Chat
from tide.core.errors import InputError, TideError
from tide.core.sanitize import logger
from tide.core.settings import derive_seed
from tide.detoxifier.sync import Detoxifier, outcomes
from tide.engines.base import Engine, Piece, Request
from tide.evaluation import read_run
from tide.runtime.search import start_of
from tide.scorers.base import is_nearly_empty, score_texts
from tide.search import resolve_settings

_LOG = logger(__name__)
# The extent of the map is this many times the extent of the path.
_MARGIN = 1.3
STYLE = {
    "font.size": 8,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "text.parse_math": False,  # a dollar in a model's name must not begin a formula
}


@dataclass(frozen=True)
class Landscape:
    """along, across: coordinates of the grid, in |X - X0| / |X0|, shape (grid,). toxicity: of the
    completion at each grid point, shape (grid across, grid along). path: the prompt and the
    iterates, projected on the plane, shape (points, 2). measured: toxicity of the path's points as
    measured by the search, shape (points,). in_plane: share of the last point's distance from the
    prompt that lies in the plane. accepted: whether the search accepted the last point. threshold:
    acceptance threshold. descent: the steepest descent on the map, as long as the first step,
    shape (2,); None if the map is flat around the prompt.
    """

    along: NDArray[np.float64]
    across: NDArray[np.float64]
    toxicity: NDArray[np.float64]
    path: NDArray[np.float64]
    measured: NDArray[np.float64]
    in_plane: float
    accepted: bool
    threshold: float

    @cached_property
    def descent(self) -> NDArray[np.float64] | None:
        length = np.linalg.norm(self.path, axis=1)
        reach = length[length > 0][0]
        across, along = np.meshgrid(self.across, self.along, indexing="ij")
        near = np.hypot(along, across) <= reach
        # A plane through the points that the first step could have reached.
        points = np.stack([along[near], across[near], np.ones(near.sum())], axis=1)
        slope = np.linalg.lstsq(points, self.toxicity[near], rcond=None)[0][:2]
        steepness = np.linalg.norm(slope)
        return -slope * reach / steepness if steepness > 1e-9 else None


def detoxifier_of(config: dict[str, Any]) -> Detoxifier:
    """Load the model, scorer and settings of a run's configuration again.

    Raises InputError if the run was no search, or if its scorer was a function, which has no spec;
    also raises the errors of Detoxifier.
    """
    if not config.get("settings") or not config.get("model") or not config.get("scorer"):
        raise InputError("landscape: needs a run of a search (its model, scorer and settings)")
    scorer = config["scorer"]
    if scorer["spec"] is None:
        raise InputError(f"landscape: scorer {scorer['name']} was a function; it cannot be loaded")
    detoxifier = Detoxifier(
        config["model"],
        scorer=scorer["spec"],
        engine=config.get("engine", "transformers"),
        settings=resolve_settings(config["settings"]),
        engine_options={"dtype": config.get("dtype", "auto"), **config.get("engine_options", {})},
    )
    if detoxifier.scorer.name != scorer["name"]:
        _LOG.warning(
            "landscape: scored by %s, but the run used %s", detoxifier.scorer.name, scorer["name"]
        )
    return detoxifier


def explore(
    detoxifier: Detoxifier, asked: str | Chat, *, trial: int = 0, grid: int = 21, seed: int = 0
) -> Landscape:
    """Score a `grid` x `grid` map around a prompt, with all points in one engine call.

    Runs `tide` with the other settings of `detoxifier`. trial: number of the trial to run. All
    points have the sampling seeds of the search's first evaluation, so only their embeddings
    differ, and the centre of the map has the score that the search measured for the prompt.
    seed: seed of the random direction. Raises InputError if the search makes no step.
    """
    settings, engine = detoxifier.settings, detoxifier.engine
    prompt = engine.text_of(asked)
    if settings.strategy.partition(":")[0] != "tide":
        settings = settings.model_copy(update={"strategy": "tide"})
    search = Detoxifier(engine, scorer=detoxifier.scorer, settings=settings)
    with _recorded(engine) as recorded:
        ((_, result),) = outcomes(search, [prompt], trials=[trial])
    if isinstance(result, TideError):
        raise result
    problem = start_of(engine.encode(prompt), settings, 0, engine)
    whole, movable = problem.x0, problem.movable
    x0 = whole[movable]
    # The prompt and the iterates, by round; a point may be completed several times in a round.
    trace, points = result.best.trace, dict[int, Tensor]()
    scores: dict[int, list[float]] = {}
    for request, evaluation in zip(recorded, trace, strict=False):
        if evaluation.role != "perturbation":
            embedded = request.prompt
            if isinstance(embedded, Sequence):
                embedded = engine.embed_tokens(embedded)
            points[evaluation.round] = embedded[movable].float()
            scores.setdefault(evaluation.round, []).append(evaluation.toxicity)
    steps = torch.stack([*points.values()]) - x0
    moved = steps.flatten(1).norm(dim=1).nonzero().flatten()
    if len(moved) == 0:
        raise InputError(
            "landscape: the search made no step from this prompt (its first completion is accepted,"
            " or no perturbation changed the score); choose another id"
        )
    plane = _plane(steps[moved[0]], seed)
    size = float(x0.norm())
    path = torch.einsum("ptd,atd->pa", steps, plane).double().numpy() / size
    reach = _MARGIN * float(np.abs(path).max())
    axis = np.linspace(-reach, reach, grid)
    across, along = np.meshgrid(axis, axis, indexing="ij")
    tried = []
    for weights in np.stack([along.ravel(), across.ravel()], axis=1) * size:
        x = whole.clone()
        x[movable] += torch.einsum("a,atd->td", torch.from_numpy(weights).float(), plane)
        tried.append(x)
    noise = [request.seed for request in recorded[: settings.completions_per_evaluation]]
    ids = recorded[0].penalized_ids
    requests = [Request(x, settings, seed, penalized_ids=ids) for x in tried for seed in noise]
    completions = engine.portal.run(engine.complete, requests)
    texts = [completion.text for completion in completions]
    measured_scores = score_texts(detoxifier.scorer, texts, is_nearly_empty).values
    return Landscape(
        along=axis,
        across=axis,
        toxicity=measured_scores.reshape(grid, grid, len(noise)).mean(axis=-1),
        path=path,
        measured=np.array([fmean(some) for some in scores.values()]),
        in_plane=float(np.linalg.norm(path[-1]) * size / (steps[-1].norm() or 1.0)),
        accepted=result.best.accepted and result.best.returned.role == "iterate",
        threshold=settings.toxicity_threshold,
    )


@contextmanager
def _recorded(engine: Engine) -> Iterator[list[Request]]:
    """Record every request that the engine completes, in order."""
    requests: list[Request] = []
    write = engine._write

    def record(request: Request) -> AsyncGenerator[Piece, None]:
        requests.append(request)
        return write(request)

    engine._write = record  # type: ignore[method-assign]
    try:
        yield requests
    finally:
        del engine._write


def _plane(step: Tensor, seed: int) -> Tensor:
    """Return two orthonormal directions, shape (2, T, d): along `step`, and a random direction."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "landscape"))
    first = step / step.norm()
    other = torch.randn(step.shape, generator=generator)
    other -= (other * first).sum() * first
    return torch.stack([first, other / other.norm()])


def draw(world: Landscape, title: str, trial: str) -> Figure:
    """Draw the map with the search's path. trial: description of the trial."""
    shades = {"cmap": "cividis", "vmin": 0, "vmax": 1}
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.5, 4.1), layout="constrained")
        panel = figure.subplots()
        cells = world.along, world.across, world.toxicity
        drawn = panel.pcolormesh(*cells, **shades, rasterized=True)
        if world.toxicity.min() < world.threshold < world.toxicity.max():
            lines = {"colors": "white", "linewidths": 0.8, "linestyles": "--"}
            panel.contour(*cells, [world.threshold], **lines)
        if world.descent is not None:
            style = {"color": "#D55E00", "lw": 1.4, "ls": (0, (3, 1)), "label": "steepest descent"}
            panel.plot(*zip((0.0, 0.0), world.descent, strict=True), **style)
        panel.plot(*world.path.T, color="black", lw=2.6, label="path")
        panel.plot(*world.path.T, color="white")
        last = "accepted" if world.accepted else "last iterate"
        marks: dict[str, tuple[Any, str, int]] = {"prompt": (0, "s", 36), last: (-1, "*", 110)}
        for label, (which, marker, size) in {"": (slice(1, -1), "o", 26), **marks}.items():
            colours = {"c": np.atleast_1d(world.measured[which]), **shades}
            rim = {"marker": marker, "s": size, "edgecolors": "black", "linewidths": 0.8}
            points_there = np.atleast_2d(world.path[which]).T
            panel.scatter(*points_there, **colours, **rim, label=label or None, zorder=3)
        panel.set_xlabel(r"along the first step, $|\Delta X|\,/\,|X_0|$", parse_math=True)
        panel.set_ylabel("random orthogonal direction")
        panel.set_aspect("equal")
        figure.colorbar(drawn, ax=panel, label="toxicity", shrink=0.85)
        says = (
            f"{trial}. The map is the plane through the prompt's embeddings along the search's "
            "first step and a random direction orthogonal to it; every cell has the sampling noise "
            "of the prompt's own completion. The path is projected on the plane, which holds "
            f"{world.in_plane:.0%} of its last point's distance; the colour of its points is the "
            "toxicity that the search measured. Steepest descent: of a plane fitted to the map "
            "within one step."
        )
        figure.suptitle(title, fontsize=8)
        position = {"loc": "outside lower center", "ncols": 3}
        figure.legend(**position, title=textwrap.fill(says, 78), title_fontsize=6)
    return figure


def main(
    run: Annotated[Path, typer.Argument(help="A run of a search.")],
    prompt: Annotated[str, typer.Argument(help="Id of a prompt in it.")],
    grid: Annotated[int, typer.Option(help="Grid points per side.", min=2)] = 21,
    image: Annotated[Path, typer.Option()] = Path("landscape.png"),
) -> None:
    read = read_run(run)
    record = next((candidate for candidate in read.records if str(candidate.id) == prompt), None)
    if record is None:
        raise InputError(f"{run}: no prompt with id {prompt!r}")
    asked = Chat(messages=tuple(record.messages)) if record.messages else record.prompt
    trial = max(record.trials, key=lambda trial_record: trial_record.evaluations or 0)
    with detoxifier_of(read.config) as detoxifier:
        world = explore(detoxifier, asked, trial=trial.number, grid=grid)
    figure = draw(world, f"prompt {prompt}", f"Trial {trial.number + 1} of {len(record.trials)}")
    figure.savefig(image, dpi=200)
    print(image)


if __name__ == "__main__":
    try:
        typer.run(main)
    except TideError as error:
        raise SystemExit(f"error: {error}") from None
