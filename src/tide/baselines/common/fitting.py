"""What the fits share: the task, batches of texts, low-rank training, held-out figures."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tide.baselines.common.labelled import Labelled
from tide.baselines.common.settings import FitSettings
from tide.data.labelled import LabelledText
from tide.engines.local.padding import by_length, in_batches
from tide.registry import require

_WARM_UP = 0.05
_READ_BATCH = 64

_T = TypeVar("_T")

# What is being done, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]


@dataclass
class FitTask:
    """What a baseline is fitted with. model: a plain one, whose weights the fit may change.

    scorer: spec of what judges the texts that the model itself writes.
    """

    name: str
    tokenizer: Any
    model: Any
    data: Labelled
    settings: FitSettings
    progress: Progress
    scorer: str = ""

    def __post_init__(self) -> None:
        self.train, self.held_out = self.data.split(self.settings.seed)

    def texts(self) -> tuple[list[LabelledText], list[LabelledText]]:
        """Balanced texts to train on and, at most a tenth of `max_texts`, to measure on."""
        limit, seed = self.settings.max_texts, self.settings.seed
        train = self.train.balanced(seed, limit)
        return train, self.held_out.balanced(seed, max(limit // 10, 40))

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids as the model reads a prompt, cut to `max_tokens`."""
        ids = self.tokenizer(list(texts))["input_ids"]
        return [row[: self.settings.max_tokens] for row in ids]


@dataclass(frozen=True)
class Fitted:
    """tensors: what was learned. held_out: figures on texts that it was not learned from."""

    tensors: dict[str, Tensor]
    held_out: dict[str, float]


def auc(labels: Sequence[bool] | NDArray[np.bool_], scores: Sequence[float]) -> float:
    """Area under the ROC curve: how often a positive scores above a negative one."""
    return float(roc_auc_score(np.asarray(labels), np.asarray(scores)))


def right_pad(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids (B, T), zeros behind, and their lengths (B,). A causal model never looks behind."""
    tensors = [torch.tensor(row) for row in rows]
    ids = nn.utils.rnn.pad_sequence(tensors, batch_first=True)
    return ids.to(device), torch.tensor([len(row) for row in rows], device=device)


def before_end(lengths: Tensor, width: int) -> Tensor:
    """Mask (B, width): True in the first `lengths` columns."""
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def token_losses(logits: Tensor, ids: Tensor) -> Tensor:
    """-log p of each token but the first, (B, T - 1), given logits (B, T, V) and ids (B, T)."""
    return cross_entropy(logits[:, :-1].float().transpose(1, 2), ids[:, 1:], reduction="none")


def batches(lengths: Sequence[int], size: int, seed: int) -> Iterator[list[int]]:
    """Numbers of rows, for ever: random batches of rows of similar length."""
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(len(lengths))
        # Sorted within large chunks only, so that batches stay random.
        chunks = [order[i : i + 32 * size] for i in range(0, len(order), 32 * size)]
        ordered = [sorted(chunk, key=lengths.__getitem__) for chunk in chunks]
        cut = [chunk[i : i + size] for chunk in ordered for i in range(0, len(chunk), size)]
        for i in generator.permutation(len(cut)):
            yield [int(row) for row in cut[i]]


def read(
    work: Callable[[list[Sequence[int]]], Sequence[_T]], ids: Sequence[Sequence[int]]
) -> list[_T]:
    """What `work` gives for each row of `ids`, which it gets in batches of similar length."""
    order = by_length([len(row) for row in ids])
    return in_batches(lambda numbers: work([ids[i] for i in numbers]), [order], _READ_BATCH)


def train(
    groups: list[dict[str, Any]],
    loss: Callable[[list[int]], Tensor],
    lengths: Sequence[int],
    task: FitTask,
    what: str,
) -> None:
    """AdamW with a short warm-up and linear decay on `loss` of batches (numbers of rows).

    groups: parameters, as torch's optimizers take them, with a learning rate of their own or not.
    """
    settings = task.settings
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, weight_decay=0.01)
    warm_up = math.ceil(_WARM_UP * settings.steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm_up, (settings.steps - step) / settings.steps),
    )
    parameters = [parameter for group in groups for parameter in group["params"]]
    source = batches(lengths, settings.batch_size, settings.seed)
    for step in range(settings.steps):
        value = loss(next(source))
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        task.progress(what, step + 1, settings.steps)


def add_lora(model: Any, settings: FitSettings) -> Any:
    """`model` with low-rank updates at every linear layer but the last; only they can be trained.

    Raises MissingDependencyError without peft.
    """
    peft = require("peft", "baselines")
    from transformers.pytorch_utils import Conv1D  # noqa: PLC0415  (slow import)

    torch.manual_seed(settings.seed)
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=2 * settings.rank,
        target_modules="all-linear",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    with warnings.catch_warnings():
        # peft asks transformers for a property by its old name.
        warnings.filterwarnings(
            "ignore", message=".*is_gradient_checkpointing", category=FutureWarning
        )
        return peft.get_peft_model(model, config)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def lora_tensors(model: Any, prefix: str = "") -> dict[str, Tensor]:
    """The updates of a model made by `add_lora`, float16, as `merge_lora` takes them."""
    tensors = {}
    for name, module in model.named_modules():
        if not hasattr(module, "lora_A"):
            continue
        layer = prefix + name.removeprefix("base_model.model.")
        scaled = module.lora_B["default"].weight * module.scaling["default"]
        tensors[f"{layer}.A"] = module.lora_A["default"].weight.detach().half()
        tensors[f"{layer}.B"] = scaled.detach().half()
    return tensors


@torch.inference_mode()
def perplexity(model: Any, ids: Sequence[Sequence[int]]) -> float:
    """Exp of the mean -log p per token, of all texts that have at least two tokens."""
    ids = [row for row in ids if len(row) > 1]

    def losses_of(rows: list[Sequence[int]]) -> list[float]:
        padded, lengths = right_pad(rows, model.device)
        losses = token_losses(model(input_ids=padded, use_cache=False).logits, padded)
        seen = before_end(lengths - 1, losses.shape[1])
        return list((losses.double() * seen).sum(dim=-1).tolist())

    return math.exp(sum(read(losses_of, ids)) / sum(len(row) - 1 for row in ids))


def fine_tune(
    task: FitTask, texts: Sequence[str], held_out: Sequence[str], what: str, prefix: str = ""
) -> Fitted:
    """LoRA updates that make the task's model write `texts`; the model is left as it was.

    Figures: perplexity of `held_out` before and after.
    """
    ids = [row for row in task.tokenize(texts) if len(row) > 1]
    measured = task.tokenize(held_out)
    before = perplexity(task.model, measured)
    model = add_lora(task.model, task.settings)

    def loss(numbers: list[int]) -> Tensor:
        padded, lengths = right_pad([ids[i] for i in numbers], task.model.device)
        losses = token_losses(model(input_ids=padded, use_cache=False).logits, padded)
        return losses[before_end(lengths - 1, losses.shape[1])].mean()

    train([{"params": trainable(model)}], loss, [len(row) for row in ids], task, what)
    figures = {
        f"{what} perplexity before": before,
        f"{what} perplexity": perplexity(model, measured),
    }
    tensors = lora_tensors(model, prefix)
    model.unload()
    return Fitted(tensors, figures)
