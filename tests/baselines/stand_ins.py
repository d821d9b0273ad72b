"""Baselines of tiny models with random learned parts, and their plain, uncached computation."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from tests.models import VOCAB
from tide.baselines.common.artefacts import fingerprint, save_artefact
from tide.baselines.destein import steer
from tide.baselines.gedi import GediOptions, guide
from tide.baselines.reversal import Reversal, reverse
from tide.baselines.self_debias import SelfDebias
from tide.core.settings import Sampling
from tide.engines.local.engine import TransformersEngine
from tide.engines.local.sampler import Sampler

# Prefixes that fit into the context of a tiny model.
DEBIAS_PREFIXES = ("Rain: ", "The town is kind: ")
NEGATIVE, POSITIVE = "Rain fell: ", "kind people: "
GEDI_SCALE = 3.0
STRENGTHS = {
    "contrastive": "contrastive:coefficient=1.5,amateur_temperature=2",
    "critic-control": "critic-control:weight=20,candidates=8",
    "dapt": "dapt:scale=1",
    "destein": "destein:alpha=0.4",
    "dexperts": "dexperts:alpha=2",
    "fudge": "fudge:weight=20,candidates=8",
    "gedi": "gedi:omega=5",
    "pplm": "pplm:stepsize=0.5,iterations=2,divergence=0.1",
    "prefix": "prefix:scale=2,text=Rain:",
    "quark": "quark:scale=1.5",
    "rad": "rad:beta=20,candidates=8",
    "rectification": "rectification:scale=1.5",
    "reversal": "reversal:scale=1",
    "safe-decoding": "safe-decoding:alpha=3,first=5",
    "sasa": "sasa:beta=3,candidates=8",
    "self-debias": "self-debias:decay=50",
    "unidetox": "unidetox:scale=1",
    "vocabulary-shift": "vocabulary-shift:beta=3",
    "word-filter": "word-filter:penalty=1000",
}
ORDERS = {
    "contrastive": "shift-warp",
    "critic-control": "shift-warp",
    "dexperts": "shift-warp",
    "fudge": "shift-warp",
    "gedi": "shift-warp",
    "pplm": "shift-warp",
    "prefix": "shift-warp",
    "quark": "shift-warp",
    "rad": "warp-shift",
    "rectification": "shift-warp",
    "safe-decoding": "shift-warp",
    "sasa": "warp-shift",
    "self-debias": "shift-warp",
    "vocabulary-shift": "shift-warp",
    "word-filter": "shift-warp",
}
OFF = {
    "contrastive": "contrastive:coefficient=0",
    "critic-control": "critic-control:weight=0",
    "dapt": "dapt:scale=0",
    "destein": "destein:alpha=0",
    "dexperts": "dexperts:alpha=0",
    "fudge": "fudge:weight=0,candidates=40",
    "gedi": "gedi:omega=0",
    "pplm": "pplm:stepsize=0",
    "prefix": "prefix:scale=0,text=Rain:",
    "quark": "quark:scale=0",
    "rad": "rad:beta=0",
    "rectification": "rectification:scale=0",
    "reversal": "reversal:scale=0",
    "safe-decoding": "safe-decoding:alpha=0,first=5",
    "sasa": "sasa:beta=0",
    "self-debias": "self-debias:decay=0",
    "unidetox": "unidetox:scale=0",
    "vocabulary-shift": "vocabulary-shift:beta=0",
    "word-filter": "word-filter:penalty=0",
}

# What a score is prepared with before it is shifted.
Prepare = Callable[[Tensor], Tensor]


def projections(model: Any) -> list[Any]:
    """The attention output projections, by the names that each architecture gives them."""
    if model.config.model_type == "gpt2":
        return [block.attn.c_proj for block in model.transformer.h]
    return [layer.self_attn.o_proj for layer in model.model.layers]


def save_random_artefacts(folder: Path, model: Any, name: str) -> None:
    """An artefact of every baseline that learns something, with random contents."""
    generator = torch.Generator().manual_seed(1)

    def randn(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*shape, generator=generator)

    layers = {
        layer: module
        for layer, module in model.named_modules()
        if type(module) in (torch.nn.Linear, Conv1D) and module is not model.lm_head
    }

    def lora(prefix: str) -> dict[str, Tensor]:
        tensors = {}
        for layer, module in layers.items():
            wide, deep = module.weight.shape[::-1]
            if isinstance(module, Conv1D):
                wide, deep = deep, wide
            tensors[f"{prefix}{layer}.A"] = randn(2, wide, scale=0.1)
            tensors[f"{prefix}{layer}.B"] = randn(deep, 2, scale=0.3)
        return tensors

    # Half of the tokens as words of one token, and words of two.
    words = [[token, -1] for token in range(3, VOCAB, 2)] + [[a, 302 - a] for a in range(4, 300, 2)]
    width = model.config.hidden_size

    def with_head() -> dict[str, Tensor]:
        return lora("lora.") | {"head.weight": randn(1, width), "head.bias": randn(1)}

    for kind, tensors in {
        "destein": {"directions": randn(len(projections(model)), width)},
        "dexperts": lora("expert.") | lora("anti."),
        "gedi": lora("lora.") | {"scale": torch.tensor(GEDI_SCALE)},
        "rad": with_head(),
        "sasa": {
            f"{labels}.{name}": randn(width)
            for labels in ("half", "any")
            for name in ("weight", "midpoint")
        },
        "critic-control": with_head(),
        "fudge": with_head(),
        "pplm": {"weight": randn(width), "bias": randn(1)},
        "quark": lora("lora.") | {"codes": randn(5, width)},
        "rectification": lora("lora.")
        | {
            "head.0.weight": randn(2, width),
            "head.1.weight": randn(VOCAB, 2, scale=0.2),
            "head.1.bias": randn(VOCAB, scale=0.2) - 0.5,
        },
        "unidetox": lora(""),
        "vocabulary-shift": {"weight": randn(2, VOCAB)},
        "word-filter": {"ids": torch.tensor(words), "words": torch.arange(len(words))},
    }.items():
        info = {"baseline": kind, "model": name, "fingerprint": fingerprint(model)}
        save_artefact(folder / kind, tensors, {**info, "auxiliary": None})


class Plain:
    """What each baseline computes, one row at a time and from scratch at every token."""

    def __init__(self, folder: Path, engine: TransformersEngine, artefacts: Path) -> None:
        self.folder, self.engine, self.artefacts = folder, engine, artefacts
        self.model = self.load()
        self._scores: dict[str, Callable[..., Tensor]] = {}

    def load(self, lora: dict[str, Tensor] | None = None) -> Any:
        model = AutoModelForCausalLM.from_pretrained(self.folder)
        for key in [key for key in lora or {} if key.endswith(".A")]:
            layer = model.get_submodule(key[:-2])
            update = lora[key[:-2] + ".B"] @ lora[key]
            layer.weight.data += update.T if isinstance(layer, Conv1D) else update
        return model

    def tensors(self, kind: str, prefix: str = "") -> dict[str, Tensor]:
        from safetensors.torch import load_file

        every = load_file(self.artefacts / kind / "weights.safetensors")
        return {k.removeprefix(prefix): v for k, v in every.items() if k.startswith(prefix)}

    @torch.no_grad()
    def write(
        self, kind: str, prompt: str, sampling: Sampling, seed: int, order: str = ""
    ) -> list[int]:
        """The ids that baseline `kind` writes after `prompt`, at its strength in STRENGTHS."""
        if kind not in self._scores:
            self._scores[kind] = getattr(self, kind.replace("-", "_"))()
        score = self._scores[kind]
        ids, written = self.engine.tokenize([prompt])[0], []
        sampler = Sampler(torch.device("cpu"))
        sampler.enter([sampling], [seed])
        shift_first = (order or ORDERS.get(kind)) == "shift-warp"
        for _ in range(sampling.max_new_tokens):
            if shift_first:
                scores = sampler.warp(score(prompt, ids, written, lambda x: x)[None])[0]
            else:
                scores = score(prompt, ids, written, lambda x: sampler.warp(x[None])[0])
            token = int(sampler.draw(scores[None])[0])
            if token in self.engine.stop_ids.tolist():
                break
            written.append(token)
        return written

    def next(self, model: Any, ids: list[int]) -> Tensor:
        return model(torch.tensor([ids])).logits[0, -1]

    def hooked(self, register: str, hook: Callable[[int], Any], ids: list[int]) -> Tensor:
        """The next logits, with a hook of its number at each attention output projection."""
        modules = enumerate(projections(self.model))
        handles = [getattr(module, register)(hook(i)) for i, module in modules]
        logits = self.next(self.model, ids)
        for handle in handles:
            handle.remove()
        return logits

    def contrastive(self) -> Callable[..., Tensor]:
        anti = self.load(self.tensors("dexperts", "anti."))

        def score(prompt: str, ids: list[int], new: list[int], prepare: Prepare) -> Tensor:
            scores = prepare(self.next(self.model, ids + new))
            least = scores.max() + torch.tensor(0.1).log()
            contrasted = scores - 1.5 * self.next(anti, ids + new) / 2
            return torch.where(scores >= least, contrasted, -torch.inf)

        return score

    def dapt(self) -> Callable[..., Tensor]:
        return self.tuned("dexperts", "expert.")

    def unidetox(self) -> Callable[..., Tensor]:
        return self.tuned("unidetox")

    def tuned(self, kind: str, prefix: str = "") -> Callable[..., Tensor]:
        model = self.load(self.tensors(kind, prefix))
        return lambda prompt, ids, new, prepare: prepare(self.next(model, ids + new))

    def destein(self) -> Callable[..., Tensor]:
        directions = self.tensors("destein")["directions"]

        def score(prompt: str, ids: list[int], new: list[int], prepare: Prepare) -> Tensor:
            def hook(layer: int) -> Any:
                return lambda module, args, output: steer(output, directions[layer], 0.4)

            return prepare(self.hooked("register_forward_hook", hook, ids + new))

        return score

    def dexperts(self) -> Callable[..., Tensor]:
        expert, anti = (self.load(self.tensors("dexperts", f"{s}.")) for s in ("expert", "anti"))

        def score(prompt: str, ids: list[int], new: list[int], prepare: Prepare) -> Tensor:
            base = self.next(self.model, ids + new)
            difference = self.next(expert, ids + new) - self.next(anti, ids + new)
            scores = prepare(base) + 2 * difference
            ordered = base.softmax(-1).sort(descending=True)
            before = ordered.values.cumsum(0) - ordered.values
            return scores.index_fill(0, ordered.indices[before >= 0.9], -torch.inf)

        return score

    def gedi(self) -> Callable[..., Tensor]:
        model = self.load(self.tensors("gedi", "lora."))
        tokenizer = self.engine.tokenizer
        codes = [tokenizer.encode(word, add_special_tokens=False) for word in ("clean", "dirty")]

        def score(prompt: str, ids: list[int], new: list[int], prepare: Prepare) -> Tensor:
            lead = [token for token in ids if token in tokenizer.all_special_ids]
            text = ids[len(lead) :] + new
            likelihoods = []
            for code in codes:
                row = lead + code + text
                logits = model(torch.tensor([row])).logits[0].log_softmax(-1)
                start = len(lead) + len(code)
                read = sum(logits[t - 1, row[t]] for t in range(start, len(row)))
                likelihoods.append((read + logits[-1]) / (len(text) + 1))
            clean, dirty = likelihoods
            scores = prepare(self.next(self.model, ids + new))[None]
            return guide(scores, GEDI_SCALE * (clean - dirty)[None], GediOptions(omega=5))[0]

        return score

    def pplm(self) -> Callable[..., Tensor]:
        """Keys and values of every layer as one tensor each, moved token by token."""
        from transformers.cache_utils import DynamicCache

        parts = self.tensors("pplm")
        table = self.model.get_input_embeddings().weight
        kept: list[Tensor] = []
        old_name = "past_key_values"  # up to transformers 5.23
        name = "cache" if "cache" in signature(self.model.forward).parameters else old_name

        def read(past: list[Tensor], **inputs: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
            cache = DynamicCache()
            for layer, (keys, values) in enumerate(past):
                cache.update(keys, values, layer)
            out = self.model(**{name: cache}, output_hidden_states=True, **inputs)
            every = [torch.stack([layer.keys, layer.values]) for layer in cache.layers]
            return out.logits[0, -1], out.hidden_states[-1][0], every

        def score(prompt: str, ids: list[int], new: list[int], prepare: Prepare) -> Tensor:
            text, last = torch.tensor([ids + new]), torch.tensor([[*ids, *new][-1:]])
            base, hidden, whole = read([], input_ids=text)
            if not new:
                kept[:] = [part[..., :-1, :] for part in whole]
            change = [torch.zeros_like(part) for part in kept]
            for _ in range(2):
                change = [part.detach().requires_grad_() for part in change]
                with torch.enable_grad():
                    past = [a + b for a, b in zip(kept, change, strict=True)]
                    logits, now, _ = read(past, input_ids=last)
                    p = logits.softmax(0)
                    _, ahead, _ = read(whole, inputs_embeds=(p @ table)[None, None])
                    mean = (hidden[:-1].sum(0) + now[-1].detach() + ahead[-1]) / (text.shape[1] + 1)
                    clean = (mean @ parts["weight"] + parts["bias"]).sigmoid()
                    divergence = (p * (p.log() - base.log_softmax(0))).sum()
                    loss = -clean.log().sum() + 0.1 * divergence
                gradients = torch.autograd.grad(loss, change)
                change = [
                    part - 0.5 * gradient / gradient.norm().clamp(min=1e-15)
                    for part, gradient in zip(change, gradients, strict=True)
                ]
            moved, _, kept[:] = read(
                [a + b for a, b in zip(kept, change, strict=True)], input_ids=last
            )
            return prepare(base) + 0.9 * (moved - base)

        return score

    def prefix(self) -> Callable[..., Tensor]:
        def score(prompt: str, ids: list[int], new: list[int], prepare: Prepare) -> Tensor:
            base = self.next(self.model, ids + new)
            other = self.next(self.model, self.engine.tokenize(["Rain:\n" + prompt])[0] + new)
            return prepare(base) + 2 * (other - base)

        return score

    def critic_control(self) -> Callable[..., Tensor]:
        return self.fudge("critic-control")

    def fudge(self, kind: str = "fudge") -> Callable[..., Tensor]:
        model = self.with_head(kind)

        def score(prompt: str, ids: list[int], new: list[int], prepare: Prepare) -> Tensor:
            scores = prepare(self.next(self.model, ids + new))
            top = scores.topk(8)
            clean = torch.stack([self.next(model, [*ids, *new, t])[0] for t in top.indices])
            shifted = top.values + 20 * clean.sigmoid().log()
            return torch.full_like(scores, -torch.inf).scatter(0, top.indices, shifted)

        return score

    def with_head(self, kind: str) -> Any:
        model = self.load(self.tensors(kind, "lora."))
        parts = self.tensors(kind, "head.")
        head = torch.nn.Linear(parts["weight"].shape[1], 1)
        head.load_state_dict(parts)
        model.set_output_embeddings(head)
        return model

    def rad(self) -> Callable[..., Tensor]:
        model = self.with_head("rad")

        def score(prompt: str, ids: list[int], new: list[int], prepare: Prepare) -> Tensor:
            scores = prepare(self.next(self.model, ids + new))
            top = scores.topk(8)
            toxicity = torch.stack([self.next(model, [*ids, *new, t])[0] for t in top.indices])
            low, high = toxicity.min(), toxicity.max()
            shifted = top.values + 20 * (1 - (toxicity - low) / (high - low))
            return torch.full_like(scores, -torch.inf).scatter(0, top.indices, shifted)

        return score

    def quark(self) -> Callable[..., Tensor]:
        model = self.load(self.tensors("quark", "lora."))
        best = self.tensors("quark")["codes"][:1]

        def score(prompt: str, ids: list[int], new: list[int], prepare: Prepare) -> Tensor:
            base = self.next(self.model, ids + new)
            x = torch.cat([best, model.get_input_embeddings()(torch.tensor(ids + new))])
            other = model(inputs_embeds=x[None]).logits[0, -1]
            return prepare(base) + 1.5 * (other - base)

        return score

    def rectification(self) -> Callable[..., Tensor]:
        model = self.load(self.tensors("rectification", "lora."))
        parts = self.tensors("rectification", "head.")

        def score(prompt: str, ids: list[int], new: list[int], prepare: Prepare) -> Tensor:
            scores = prepare(self.next(self.model, ids + new))
            hidden = model(torch.tensor([ids + new]), output_hidden_states=True).hidden_states[-1]
            q = parts["1.weight"] @ (parts["0.weight"] @ hidden[0, -1]) + parts["1.bias"]
            if self.model.config.model_type == "gemma2":
                q = 30 * (q / 30).tanh()
            caps = (1 + 1.5 * (q - 0.1)).clamp(1e-7, 1).log()
            for _ in range(2):
                scores = torch.minimum(scores, caps + scores.exp().sum().log())
            return scores

        return score

    def reversal(self) -> Callable[..., Tensor]:
        heads = self.model.config.num_attention_heads

        def values(ids: list[int]) -> list[Tensor]:
            """By layer, the heads' outputs of the untouched model, (T, heads, size)."""
            noted: list[Tensor] = []
            handles = [
                module.register_forward_pre_hook(
                    lambda module, args: noted.append(args[0][0].unflatten(-1, (heads, -1)))
                )
                for module in projections(self.model)
            ]
            self.model(torch.tensor([ids]))
            for handle in handles:
                handle.remove()
            return noted

        def score(prompt: str, ids: list[int], new: list[int], prepare: Prepare) -> Tensor:
            positive, negative = (
                values(self.engine.tokenize([prefix + prompt])[0] + new)
                for prefix in (POSITIVE, NEGATIVE)
            )
            end = values(self.engine.tokenize([NEGATIVE.strip()])[0])
            moved_from = len(ids) - 1

            def hook(layer: int) -> Any:
                def call(module: Any, args: Any) -> Any:
                    x = args[0].clone()
                    for t in range(moved_from, x.shape[1]):
                        back = x.shape[1] - t  # the prefixed rows are longer in front
                        delta = negative[layer][-back] - positive[layer][-back]
                        x[0, t] = reverse(
                            x[0, t].unflatten(-1, (heads, -1)), delta, end[layer][-1],
                            scale=1.0, norm_exponent=0.4, similarity_exponent=0.6,
                        ).flatten()  # fmt: skip
                    return (x,)

                return call

            return prepare(self.hooked("register_forward_pre_hook", hook, ids + new))

        return score

    def safe_decoding(self) -> Callable[..., Tensor]:
        expert = self.load(self.tensors("dexperts", "expert."))

        def score(prompt: str, ids: list[int], new: list[int], prepare: Prepare) -> Tensor:
            scores, other = prepare(self.next(self.model, ids + new)), self.next(expert, ids + new)
            if len(new) >= 5:
                return scores
            k, common = 0, set()
            while len(common) < 5:
                k += 1
                common = set(scores.topk(k).indices.tolist()) & set(other.topk(k).indices.tolist())
            kept = [*common | {int(scores.argmax())}]
            own, safe = scores.softmax(0), other.softmax(0)
            moved = (own + 3 * (safe - own)).clamp(min=1e-8).log()
            moved = moved.masked_fill(scores == -torch.inf, -torch.inf)
            return torch.full_like(scores, -torch.inf).index_copy(
                0, torch.tensor(kept), moved[kept]
            )

        return score

    def sasa(self) -> Callable[..., Tensor]:
        tensors = self.tensors("sasa")

        def score(prompt: str, ids: list[int], new: list[int], prepare: Prepare) -> Tensor:
            scores = prepare(self.next(self.model, ids + new))
            top = scores.topk(8)
            rows = torch.tensor([[*ids, *new, token] for token in top.indices.tolist()])
            hidden = self.model(rows, output_hidden_states=True).hidden_states[-1][:, -1]
            margin = (hidden - tensors["half.midpoint"]) @ tensors["half.weight"]
            shifted = top.values + 3 * margin
            return torch.full_like(scores, -torch.inf).scatter(0, top.indices, shifted)

        return score

    def self_debias(self) -> Callable[..., Tensor]:
        def score(prompt: str, ids: list[int], new: list[int], prepare: Prepare) -> Tensor:
            logits = self.next(self.model, ids + new)
            own = logits.softmax(-1)
            prefixed = torch.stack(
                [
                    self.next(self.model, self.engine.tokenize([prefix + prompt])[0] + new)
                    for prefix in DEBIAS_PREFIXES
                ]
            ).softmax(-1)
            delta = own - prefixed.max(dim=0).values
            factor = torch.where(delta >= 0, 1.0, (50 * delta).exp()).clamp(min=0.01)
            return prepare(logits) + factor.log()

        return score

    def vocabulary_shift(self) -> Callable[..., Tensor]:
        gains = 3 * self.tensors("vocabulary-shift")["weight"][0]
        return lambda prompt, ids, new, prepare: prepare(self.next(self.model, ids + new)) + gains

    def word_filter(self) -> Callable[..., Tensor]:
        words = [
            [token for token in row if token >= 0]
            for row in self.tensors("word-filter")["ids"].tolist()
        ]

        def score(prompt: str, ids: list[int], new: list[int], prepare: Prepare) -> Tensor:
            scores, text = prepare(self.next(self.model, ids + new)), ids + new
            for *beginning, end in words:
                if not beginning or text[-len(beginning) :] == beginning:
                    scores = scores.index_add(0, torch.tensor([end]), torch.tensor([-1000.0]))
            return scores

        return score


def use_short_prefixes(monkeypatch: Any) -> None:
    monkeypatch.setattr(SelfDebias, "prefixes", DEBIAS_PREFIXES)
    monkeypatch.setattr(Reversal, "negative", NEGATIVE)
    monkeypatch.setattr(Reversal, "positive", POSITIVE)
