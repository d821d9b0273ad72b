"""How baselines are trained: batches of texts, losses, updates, held-out figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tide.baselines.artefacts import add_lora
from tide.baselines.base import Training
from tide.baselines.fit import TOXIC, FitTask, Fitted, of_kind
from tide.core.errors import InputError, require
from tide.data.texts import LabelledText
from tide.engines.local.batch import by_length

_WARM_UP = 0.05
_READ_BATCH = 64
# Early stopping: share and maximum number of texts for validation; number of validations, and of
# validations without improvement after which the training ends.
_VALIDATION, _MOST_VALIDATION = 0.05, 256
_VALIDATIONS, _PATIENCE = 8, 2


def classified(
    tensors: dict[str, Tensor], texts: Sequence[LabelledText], scores: Sequence[float]
) -> Fitted:
    """Return a `Fitted` with the AUC of a classifier's scores, which are high for toxic texts."""
    figure = roc_auc_score([text.toxicity >= TOXIC for text in texts], scores)
    return Fitted(tensors, {"auc": figure})


def right_pad(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Pad rows with zeros on the right; returns ids (B, T) and the lengths of the rows (B,)."""
    tensors = [torch.tensor(row) for row in rows]
    ids = nn.utils.rnn.pad_sequence(tensors, batch_first=True)
    return ids.to(device), torch.tensor([len(row) for row in rows], device=device)


def before_end(lengths: Tensor, width: int) -> Tensor:
    """Return a mask (B, width) that is True in the first `lengths` columns."""
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def span(starts: Tensor, ends: Tensor, width: int) -> Tensor:
    """Return a mask (B, width): True from column `starts` to before column `ends`, both (B,)."""
    return before_end(ends, width) & ~before_end(starts, width)


def token_losses(logits: Tensor, ids: Tensor) -> Tensor:
    """Return -log p of all tokens but the first, (B, T - 1), for ids (B, T), logits (B, T, V)."""
    read = logits[:, :-1].float().flatten(0, 1)
    return cross_entropy(read, ids[:, 1:].flatten(), reduction="none").view(len(ids), -1)


def logits_of(model: Any, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Read token ids; returns logits (B, T, V), padded ids (B, T), and the lengths (B,)."""
    ids, lengths = right_pad(rows, model.device)
    return model(input_ids=ids, use_cache=False).logits, ids, lengths


def batches(lengths: Sequence[int], size: int, seed: int) -> Iterator[list[int]]:
    """Yield random batches of row numbers without end; rows of a batch have similar lengths."""
    if not lengths:
        raise InputError("data: no text is left to train on; texts need two tokens or more")
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(len(lengths))
        # Rows are sorted only within large chunks, so that batches stay random.
        chunks = [order[i : i + 32 * size] for i in range(0, len(order), 32 * size)]
        ordered = [sorted(chunk, key=lengths.__getitem__) for chunk in chunks]
        cut = [chunk[i : i + size] for chunk in ordered for i in range(0, len(chunk), size)]
        for i in generator.permutation(len(cut)):
            yield [int(row) for row in cut[i]]


def hidden_states(
    task: FitTask, texts: Sequence[str], pooled: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return `pooled` of each text's last hidden states, (n, d), on the CPU.

    pooled: maps right-padded hidden states (B, T, d) and the texts' lengths (B,) to (B, d).
    """

    def of(rows: list[Sequence[int]]) -> Tensor:
        padded, lengths = right_pad(rows, task.model.device)
        hidden = task.model.base_model(input_ids=padded, use_cache=False)[0]
        return pooled(hidden, lengths)

    return read(of, task.tokenize(texts))


@torch.inference_mode()
def read(work: Callable[[list[Sequence[int]]], Tensor], ids: Sequence[Sequence[int]]) -> Tensor:
    """Return the results of `work`, (n, ...), on the CPU.

    work: maps a batch of rows of similar length to results (B, ...).
    """
    order = by_length([len(row) for row in ids])
    results = []
    for start in range(0, len(order), _READ_BATCH):
        numbers = order[start : start + _READ_BATCH]
        results.append(work([ids[i] for i in numbers]).cpu())
    return torch.cat(results)[torch.tensor(order).argsort()]


def train(
    groups: list[dict[str, Any]],
    loss: Callable[[list[int]], Tensor],
    lengths: Sequence[int],
    task: FitTask,
    title: str,
    *,
    early: bool = True,
) -> None:
    """Minimise `loss` by AdamW, with a short warm-up and linear decay.

    groups: parameter groups of a torch optimizer. loss: function of a batch of row numbers.
    lengths: number of tokens of each row. early: use the last rows for validation, stop when the
    validation loss no longer improves, and keep the best parameters.
    """
    settings = task.settings
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, weight_decay=0.01)
    warm_up = math.ceil(_WARM_UP * settings.steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm_up, (settings.steps - step) / settings.steps),
    )
    parameters = [parameter for group in groups for parameter in group["params"]]
    learned = len(lengths)
    if early:
        learned -= min(math.ceil(_VALIDATION * learned), _MOST_VALIDATION)
    source = batches(lengths[:learned], settings.batch_size, settings.seed)
    order = sorted(range(learned, len(lengths)), key=lengths.__getitem__)
    validation = [
        order[i : i + settings.batch_size] for i in range(0, len(order), settings.batch_size)
    ]
    best: list[Tensor] = []
    best_loss, worse = math.inf, 0
    for step in range(settings.steps):
        if worse == _PATIENCE:
            break
        value = loss(next(source))
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        task.progress(title, step + 1, settings.steps)
        due = (step + 1) % math.ceil(settings.steps / _VALIDATIONS) == 0
        if not (early and (due or step + 1 == settings.steps)):
            continue
        with torch.no_grad():
            now = sum(float(loss(rows)) * len(rows) for rows in validation) / len(order)
        if not now < best_loss:
            worse += 1
            continue
        best, best_loss, worse = [p.detach().clone() for p in parameters], now, 0
    with torch.no_grad():
        # `best` is empty without `early`, and if the training diverged (see `save_artefact`).
        for parameter, value in zip(parameters, best, strict=bool(best)):
            parameter.copy_(value)


class Tuning:
    """A model with low-rank updates in training. Raises MissingDependencyError without peft.

    model: the module to call. parameters: the trained parameters.
    """

    def __init__(self, model: Any, settings: Training) -> None:
        torch.manual_seed(settings.seed)
        self.model = add_lora(model, settings.rank)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """Return the updates in float16, in the format of `merge_updates`."""
        state = require("peft", "baselines").get_peft_model_state_dict(self.model)
        return {f"{prefix}{name}": tensor.detach().half() for name, tensor in state.items()}


def perplexity(model: Any, ids: Sequence[Sequence[int]]) -> float:
    """Return exp of the mean -log p per token, over all texts of at least two tokens."""
    ids = [row for row in ids if len(row) > 1]

    def losses_of(rows: list[Sequence[int]]) -> Tensor:
        logits, padded, lengths = logits_of(model, rows)
        losses = token_losses(logits, padded)
        return (losses.double() * before_end(lengths - 1, losses.shape[1])).sum(dim=-1)

    return math.exp(sum(read(losses_of, ids).tolist()) / sum(len(row) - 1 for row in ids))


def fine_tune(task: FitTask, ids: Sequence[Sequence[int]], title: str) -> Tuning:
    """Tune the task's model on texts (ids), each of at least two tokens."""
    tuning = Tuning(task.model, task.settings)

    def loss(numbers: list[int]) -> Tensor:
        logits, padded, lengths = logits_of(tuning.model, [ids[i] for i in numbers])
        losses = token_losses(logits, padded)
        return losses[before_end(lengths - 1, losses.shape[1])].mean()

    train([{"params": tuning.parameters}], loss, [len(row) for row in ids], task, title)
    return tuning


def write_like(task: FitTask, *, toxic: bool) -> Fitted:
    """Train updates on toxic or non-toxic text; restores the task's model afterwards.

    Figures: perplexity of held-out text of this kind, before and after.
    """
    rows, held_out = task.texts()
    ids = [row for row in task.tokenize(of_kind(rows, toxic=toxic), end=True) if len(row) > 1]
    measured = task.tokenize(of_kind(held_out, toxic=toxic), end=True)
    before = perplexity(task.model, measured)
    tuning = fine_tune(task, ids, "toxic text" if toxic else "non-toxic text")
    figures = {"perplexity before": before, "perplexity": perplexity(tuning.model, measured)}
    fitted = Fitted(tuning.tensors(), figures)
    tuning.model.unload()
    return fitted
