"""`adlm`: Kwak et al. 2023, "Language Detoxification with Attribute-Discriminative Latent Space".

ACL 2023, arXiv:2210.10329. A projection block maps the frozen model's last hidden states to states
of a non-toxic and of a toxic text, which a discriminator tells apart. Both states give logits in
the same pass of the model. The next token is drawn from the non-toxic ones, in which tokens that
the toxic ones prefer are suppressed:

    z = log p_non-toxic + alpha min(0, log p_non-toxic - log p_toxic)

The authors published no code (jin8/ADLM is a README), and only the paper's abstract and the caption
of its overview could be read here. They say that the model is frozen, what the three parts do, and
that toxic logits are suppressed; the rest is a choice of ours. The block is a Transformer layer. It
computes a change of the hidden state, in units of the state's root mean square, and starts at no
change. Its loss is the sum of three: of the language model, for a text's own attribute; the KL
divergence from the unmodified model (the authors use elastic weight consolidation, which
approximates it); and of the discriminator, which reads a text's mean change for both attributes and
finds the text's own. `scale` moves the scores from the model (0) to z (1).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, scaled_dot_product_attention

from tide.baselines.artefacts import Head
from tide.baselines.base import ScaleOptions
from tide.baselines.decoding import DecodingBaseline, MakeLane
from tide.baselines.fit import TOXIC, FitTask, Fitted
from tide.baselines.lanes import Reader, SteeredLane
from tide.baselines.sasa import LastHidden
from tide.baselines.training import before_end, classified, read, right_pad, token_losses, train
from tide.engines.local.batch import Row

_DIVERGENCE = 0.1  # weight of the divergence from the model in the loss
_ALPHA = 4.0  # suppression of tokens that toxic text prefers


def attribute_shift(base: Tensor, clean: Tensor, toxic: Tensor, alpha: float) -> Tensor:
    """Return z - `base`, up to a constant of each row; all (B, V).

    base: the model's logits. clean, toxic: what the two projections add to them.
    """
    log_clean = clean - (base + clean).logsumexp(dim=-1, keepdim=True)
    log_toxic = toxic - (base + toxic).logsumexp(dim=-1, keepdim=True)
    return clean + alpha * (log_clean - log_toxic).clamp(max=0)


class Projection(nn.Module):
    """A Transformer block, with embeddings of non-toxic and toxic text, and the discriminator."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        width, device = model.get_output_embeddings().weight.shape[1], model.device
        heads = model.config.get_text_config().num_attention_heads
        self._heads = heads if width % heads == 0 else 1
        self.attributes = nn.Parameter(0.1 * torch.randn(2, width, device=device))
        self.norm, self.inner_norm = (nn.LayerNorm(width, device=device) for _ in range(2))
        self.attention = Head(width, 3 * width, device)
        self.merge = Head(width, width, device, bias=False)
        self.expand = Head(width, 4 * width, device)
        self.contract = Head(4 * width, width, device, bias=False)
        self.discriminator = Head(width, 1, device, bias=False)
        for weight in (self.merge.weight, self.contract.weight):
            nn.init.zeros_(weight)

    def read(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the block's inputs, queries (B, T, 2, d), and keys and values (B, T, 2, 2d)."""
        x = self.norm(hidden.float())[..., None, :] + self.attributes
        query, memory = self.attention(x).tensor_split([x.shape[-1]], dim=-1)
        return x, query, memory

    def forward(
        self, hidden: Tensor, memory: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Return the changes (B, T, 2, d) of `hidden` (B, T, d) for both attributes.

        memory: keys and values of whole texts (B, T', 2, 2d), of which those in the mask
        (B, 1, 1, 1, T') are read. By default each state reads the states of `hidden` up to itself.
        """
        x, query, fresh = self.read(hidden)
        keys, values = (fresh if memory is None else memory).chunk(2, dim=-1)
        query, keys, values = (
            part.view(*part.shape[:-1], self._heads, -1).movedim(1, -2)
            for part in (query, keys, values)
        )
        attended = scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=mask is None
        )
        change: Tensor = self.merge(attended.movedim(-2, 1).flatten(-2))
        change = change + self.contract(self.expand(self.inner_norm(x + change)).relu())
        size = hidden.float().square().mean(dim=-1).sqrt()
        return (change * size[..., None, None]).to(hidden.dtype)


class AdlmLane(SteeredLane):
    """Projects the hidden states that the lane's own model computes.

    `_memories`: keys and values of each row's text. `_last`: the last hidden states (B, d).
    """

    baseline: Adlm

    def clear(self) -> None:
        super().clear()
        self._memories: list[Tensor] = []
        self._last = torch.empty(0)

    def enter(self, rows: Sequence[Row]) -> None:
        super().enter(rows)
        hidden = self.baseline.states.value
        _, _, memory = self.baseline.projection.read(hidden)
        self._memories += [memory[number, -len(row.x) :] for number, row in enumerate(rows)]
        self._last = torch.cat([self._last.to(hidden), hidden[:, -1]])

    def shift(self, scores: Tensor) -> Tensor:
        memory = nn.utils.rnn.pad_sequence(self._memories, batch_first=True)
        lengths = torch.tensor([len(row) for row in self._memories], device=memory.device)
        mask = before_end(lengths, memory.shape[1])[:, None, None, None]
        changes = self.baseline.projection(self._last[:, None], memory, mask)[:, 0]
        clean, toxic = self.baseline.states.layer(changes).float().unbind(dim=1)
        base = self.stream.logits.float()
        scale = self.baseline.options.scale
        return scores + scale * attribute_shift(base, clean, toxic, _ALPHA)

    def advance(self, tokens: Tensor) -> None:
        super().advance(tokens)
        hidden = self.baseline.states.value
        _, _, memory = self.baseline.projection.read(hidden)
        self._memories = [torch.cat(pair) for pair in zip(self._memories, memory, strict=True)]
        self._last = hidden[:, -1]

    def leave(self) -> list[int]:
        order = super().leave()
        self._memories = [self._memories[number] for number in order]
        self._last = self._last[order]
        return order


class Adlm(DecodingBaseline):
    """Draws non-toxic text from projected hidden states, and suppresses what toxic text prefers."""

    kind = "adlm"
    options_class = ScaleOptions
    options: ScaleOptions

    def drawn_from(self) -> Reader:
        return self.reader(self.engine.model, hooks=self.states.noted)

    def lanes(self) -> MakeLane:
        _ = self.projection  # an artefact that does not fit fails here, and not for each prompt
        return AdlmLane

    @cached_property
    def states(self) -> LastHidden:
        return LastHidden(self.engine.model)

    @cached_property
    def projection(self) -> Projection:
        projection = Projection(self.engine.model)
        projection.load_state_dict(self.artefact.tensors)
        return projection.requires_grad_(False)

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Train the projection with the discriminator on hidden states of the unchanged model.

        Figure: AUC of the difference of held-out texts' likelihoods by both attributes.
        """
        texts, held_out = task.texts()
        model = task.model.requires_grad_(False)
        head = model.get_output_embeddings()
        torch.manual_seed(task.settings.seed)
        projection = Projection(model)
        ids = task.tokenize([text.text for text in texts])
        toxic = torch.tensor([text.toxicity >= TOXIC for text in texts], device=model.device)

        def projected(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            """Return padded ids, the mask of tokens to predict, the model's logits, and changes."""
            padded, lengths = right_pad(rows, model.device)
            hidden = model.base_model(input_ids=padded, use_cache=False)[0]
            seen = before_end(lengths - 1, padded.shape[1] - 1)
            return padded, seen, head(hidden).float(), projection(hidden)

        def loss(numbers: list[int]) -> Tensor:
            padded, seen, base, changes = projected([ids[i] for i in numbers])
            kinds = toxic[numbers].long()
            logits = base + head(changes[torch.arange(len(kinds)), :, kinds])
            language = token_losses(logits, padded)[seen].mean()
            tuned, untuned = (x[:, :-1][seen].log_softmax(dim=-1) for x in (logits, base))
            divergence = kl_div(tuned, untuned, reduction="batchmean", log_target=True)
            weights = seen / seen.sum(dim=1, keepdim=True).clamp(min=1)
            mean = torch.einsum("bt,btad->bad", weights, changes[:, :-1].float())
            discriminated = cross_entropy(projection.discriminator(mean)[..., 0], kinds)
            return language + _DIVERGENCE * divergence + discriminated

        def margins(rows: list[Sequence[int]]) -> Tensor:
            padded, seen, base, changes = projected(rows)
            clean, dirty = (
                (token_losses(base + head(change), padded) * seen).sum(dim=-1)
                for change in changes.unbind(dim=2)
            )
            return clean - dirty

        lengths = [len(row) for row in ids]
        train([{"params": list(projection.parameters())}], loss, lengths, task, "projection")
        scores = read(margins, task.tokenize([text.text for text in held_out]))
        tensors = {name: weight.half() for name, weight in projection.state_dict().items()}
        return classified(tensors, held_out, scores.tolist())
