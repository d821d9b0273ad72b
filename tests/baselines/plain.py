"""Random artefacts for tiny models, and a plain computation of every baseline, without caches."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import layer_norm
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.pytorch_utils import Conv1D

from tests.models import VOCAB
from tide.baselines import REGISTRY, load_baseline
from tide.baselines.adlm import Projection
from tide.baselines.artefacts import save_artefact
from tide.baselines.attention import Reversal, find_heads, reverse, steer
from tide.baselines.base import Baseline
from tide.baselines.gedi import guide
from tide.baselines.self_debias import SelfDebias
from tide.core.settings import Sampling
from tide.engines.base import Request
from tide.engines.checkpoint import fingerprint
from tide.engines.local.batch import Row
from tide.engines.local.engine import TransformersEngine
from tide.engines.local.sampler import Sampler
from tide.plugins.specs import format_spec, parse_spec

# Prefixes that fit into the context of a tiny model.
DEBIAS_PREFIXES = ("Rain: ", "The town is kind: ")
NEGATIVE, POSITIVE = "Rain fell: ", "kind people: "
GEDI_SCALE = 3.0
STRENGTHS = {
    "adlm": "adlm:scale=1.5",
    "contrastive": "contrastive:coefficient=0.75",
    "critic-control": "critic-control:weight=20,candidates=8",
    "dapt": "dapt:scale=1",
    "destein": "destein:alpha=0.4",
    "dexperts": "dexperts:alpha=2",
    "fudge": "fudge:weight=20,candidates=8",
    "gedi": "gedi:omega=5",
    "pplm": "pplm:stepsize=0.5,iterations=2",
    "quark": "quark:scale=1.5",
    "rad": "rad:beta=20,candidates=8",
    "rectification": "rectification:scale=1.5",
    "reversal": "reversal:scale=1",
    "safe-decoding": "safe-decoding:alpha=3",
    "sasa": "sasa:beta=3,candidates=8",
    "self-debias": "self-debias:decay=50",
    "unidetox": "unidetox:scale=1",
    "word-filter": "word-filter:penalty=1000",
}
# Those that warp the scores before they shift them, by default.
WARP_FIRST = ("rad", "sasa")


def at(spec: str, strength: float) -> str:
    """The spec with another strength."""
    name, options = parse_spec(spec, "baseline")
    first = next(iter(REGISTRY.load(name).options_class.model_fields))
    return format_spec(name, {**options, first: f"{strength:g}"})


# Warps the scores before they are shifted, or returns them as they are.
Prepare = Callable[[Tensor], Tensor]
Ids = list[int]


def save_random_artefacts(folder: Path, model: Any, name: str) -> None:
    """An artefact of every baseline that learns something, with random contents."""
    generator = torch.Generator().manual_seed(1)

    def randn(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*shape, generator=generator)

    def lora(prefix: str) -> dict[str, Tensor]:
        tensors = {}
        for layer, module in model.named_modules():
            if not isinstance(module, torch.nn.Linear | Conv1D) or module is model.lm_head:
                continue
            wide, deep = module.weight.shape[::-1]
            if isinstance(module, Conv1D):
                wide, deep = deep, wide
            name = f"{prefix}base_model.model.{layer}"
            tensors[f"{name}.lora_A.weight"] = randn(2, wide, scale=0.1)
            tensors[f"{name}.lora_B.weight"] = randn(deep, 2, scale=0.15)
        return tensors

    # Words of one token (every second token), and words of two tokens.
    words = [[token, -1] for token in range(3, VOCAB, 2)] + [[a, 302 - a] for a in range(4, 300, 2)]
    width = model.config.hidden_size

    def with_head() -> dict[str, Tensor]:
        return lora("lora.") | {"head.weight": randn(1, width), "head.bias": randn(1)}

    for kind, tensors in {
        "adlm": {
            part: randn(*tensor.shape, scale=0.2 if tensor.ndim > 1 else 1.0)
            for part, tensor in Projection(model).state_dict().items()
        },
        "destein": {"directions": randn(model.config.num_hidden_layers, width)},
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
        "word-filter": {"ids": torch.tensor(words), "words": torch.arange(len(words))},
    }.items():
        info = {"baseline": kind, "model": name, "fingerprint": fingerprint(model)}
        save_artefact(folder / kind, tensors, {**info, "auxiliary": None})


class World:
    """A tiny model, an engine that runs it, and artefacts with random contents.

    Computes each baseline one row at a time and from scratch at every token, too.

    One method for each baseline returns the scores of the next token after `ids`, the tokens of
    `prompt`, and `new`, the tokens written so far. prepare: applied before the scores are shifted.
    """

    def __init__(self, folder: Path, engine: TransformersEngine, artefacts: Path) -> None:
        self.folder, self.engine, self.artefacts = folder, engine, artefacts
        self._loaded: dict[tuple[str, str], Any] = {}
        self._moved: list[Tensor] = []  # the moved cache of pplm
        self.model = self.fitted("")

    def load(self, spec: str) -> Baseline:
        return load_baseline(spec, self.engine, artefacts=self.artefacts)

    def fitted(self, kind: str, part: str = "") -> Any:
        """The model with these updates, and with their head if there is one."""
        if (kind, part) in self._loaded:
            return self._loaded[kind, part]
        model = AutoModelForCausalLM.from_pretrained(self.folder)
        lora = self.tensors(kind, part) if kind else {}
        for key in [key for key in lora if "lora_A" in key]:
            layer = model.get_submodule(key.removeprefix("base_model.model.").split(".lora_A")[0])
            update = 2 * lora[key.replace("lora_A", "lora_B")] @ lora[key]
            layer.weight.data += update.T if isinstance(layer, Conv1D) else update
        if kind in ("critic-control", "fudge", "rad"):
            parts = self.tensors(kind, "head.")
            head = torch.nn.Linear(parts["weight"].shape[1], 1)
            head.load_state_dict(parts)
            model.set_output_embeddings(head)
        self._loaded[kind, part] = model
        return model

    def tensors(self, kind: str, prefix: str = "") -> dict[str, Tensor]:
        every = load_file(self.artefacts / kind / "weights.safetensors")
        return {k.removeprefix(prefix): v for k, v in every.items() if k.startswith(prefix)}

    @torch.no_grad()
    def write(self, spec: str, prompt: str, sampling: Sampling, seed: int) -> list[int]:
        """The ids that a baseline writes after `prompt`; its spec begins as in STRENGTHS."""
        kind, _, options = spec.partition(":")
        score = getattr(self, kind.replace("-", "_"))
        ids, written = self.engine.tokenize([prompt])[0], []
        sampler = Sampler(torch.empty(0, dtype=torch.int64))
        sampler.enter([Row(Request(ids, sampling, seed), torch.empty(0), ids, ids=written)])
        shift_first = kind not in WARP_FIRST or "order=shift-warp" in options
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
        """The next-token logits, with `hook(i)` at the i-th attention output projection."""
        modules = enumerate(find_heads(self.model).projections)
        handles = [getattr(module, register)(hook(i)) for i, module in modules]
        logits = self.next(self.model, ids)
        for handle in handles:
            handle.remove()
        return logits

    def adlm(self, prompt: str, ids: Ids, new: Ids, prepare: Prepare) -> Tensor:
        parts, text = self.tensors("adlm"), torch.tensor([ids + new])
        out = self.model(text, output_hidden_states=True)
        hidden, base = out.hidden_states[-1][0], out.logits[0, -1]
        size, heads = hidden[-1].square().mean().sqrt(), self.model.config.num_attention_heads

        def normal(x: Tensor, name: str) -> Tensor:
            return layer_norm(x, x.shape[-1:], parts[f"{name}.weight"], parts[f"{name}.bias"])

        likelihoods = []
        for attribute in parts["attributes"]:
            x = normal(hidden, "norm") + attribute
            every = (x @ parts["attention.weight"].T + parts["attention.bias"]).chunk(3, dim=-1)
            read = []
            for query, keys, values in zip(*(part.chunk(heads, -1) for part in every), strict=True):
                read.append(((keys @ query[-1]) / query.shape[-1] ** 0.5).softmax(0) @ values)
            change = parts["merge.weight"] @ torch.cat(read)
            inner = parts["expand.weight"] @ normal(x[-1] + change, "inner_norm")
            change = change + parts["contract.weight"] @ (inner + parts["expand.bias"]).clamp(min=0)
            logits = base + self.model.get_output_embeddings()(size * change)
            likelihoods.append(logits.log_softmax(-1))
        clean, toxic = likelihoods
        z = clean + 4 * (clean - toxic).clamp(max=0)
        return prepare(base) + 1.5 * (z - base)

    def contrastive(self, prompt: str, ids: Ids, new: Ids, prepare: Prepare) -> Tensor:
        scores = prepare(self.next(self.model, ids + new))
        least = scores.max() + torch.tensor(0.1).log()
        contrasted = scores - 0.75 * self.next(self.fitted("dexperts", "anti."), ids + new)
        return torch.where(scores >= least, contrasted, -torch.inf)

    def dapt(self, prompt: str, ids: Ids, new: Ids, prepare: Prepare) -> Tensor:
        return prepare(self.next(self.fitted("dexperts", "expert."), ids + new))

    def unidetox(self, prompt: str, ids: Ids, new: Ids, prepare: Prepare) -> Tensor:
        return prepare(self.next(self.fitted("unidetox"), ids + new))

    def destein(self, prompt: str, ids: Ids, new: Ids, prepare: Prepare) -> Tensor:
        directions = self.tensors("destein")["directions"]

        def hook(layer: int) -> Any:
            return lambda module, args, output: steer(output, directions[layer], 0.4)

        return prepare(self.hooked("register_forward_hook", hook, ids + new))

    def dexperts(self, prompt: str, ids: Ids, new: Ids, prepare: Prepare) -> Tensor:
        experts = (self.fitted("dexperts", f"{side}.") for side in ("expert", "anti"))
        base, expert, anti = (self.next(model, ids + new) for model in (self.model, *experts))
        ordered = base.softmax(-1).sort(descending=True)
        before = ordered.values.cumsum(0) - ordered.values
        scores = prepare(base) + 2 * (expert - anti)
        return scores.index_fill(0, ordered.indices[before >= 0.9], -torch.inf)

    def gedi(self, prompt: str, ids: Ids, new: Ids, prepare: Prepare) -> Tensor:
        model, tokenizer = self.fitted("gedi", "lora."), self.engine.tokenizer
        lead = [token for token in ids if token in tokenizer.all_special_ids]
        text = ids[len(lead) :] + new
        likelihoods = []
        for word in ("clean", "dirty"):
            code = tokenizer.encode(word, add_special_tokens=False)
            row, start = lead + code + text, len(lead) + len(code)
            logits = model(torch.tensor([row])).logits[0].log_softmax(-1)
            read = sum(logits[t - 1, row[t]] for t in range(start, len(row)))
            likelihoods.append((read + logits[-1]) / (len(text) + 1))
        clean, dirty = likelihoods
        scores = prepare(self.next(self.model, ids + new))[None]
        return guide(scores, GEDI_SCALE * (clean - dirty)[None], 5.0)[0]

    def pplm(self, prompt: str, ids: Ids, new: Ids, prepare: Prepare) -> Tensor:
        """Keeps keys and values of a layer as one tensor, moved before every token."""
        parts, embeddings = self.tensors("pplm"), self.model.get_input_embeddings()
        table = embeddings(torch.arange(len(embeddings.weight)))  # Gemma scales its rows
        old_name = "past_key_values"  # up to transformers 5.23
        name = "cache" if "cache" in signature(self.model.forward).parameters else old_name

        def read(past: list[Tensor], **inputs: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
            cache = DynamicCache()
            for layer, (keys, values) in enumerate(past):
                cache.update(keys, values, layer)
            out = self.model(**{name: cache}, output_hidden_states=True, **inputs)
            every = [torch.stack([layer.keys, layer.values]) for layer in cache.layers]
            return out.logits[0, -1], out.hidden_states[-1][0], every

        text, last = torch.tensor([ids + new]), torch.tensor([[*ids, *new][-1:]])
        base, hidden, whole = read([], input_ids=text)
        if not new:
            self._moved = [part[..., :-1, :] for part in whole]
        kept, change = self._moved, [torch.zeros_like(part) for part in self._moved]
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
                loss = -clean.log().sum() + 0.01 * divergence
            gradients = torch.autograd.grad(loss, change)
            change = [
                part - 0.5 * gradient / gradient.norm().clamp(min=1e-15)
                for part, gradient in zip(change, gradients, strict=True)
            ]
        past = [a + b for a, b in zip(kept, change, strict=True)]
        moved, _, self._moved = read(past, input_ids=last)
        return prepare(base) + 0.9 * (moved - base)

    def _of_candidates(
        self, kind: str, ids: Ids, scores: Tensor, gains: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """The scores of the 8 likeliest tokens plus their gains, given the head's outputs."""
        top = scores.topk(8)
        outputs = [self.next(self.fitted(kind, "lora."), [*ids, t])[0] for t in top.indices]
        shifted = top.values + gains(torch.stack(outputs))
        return torch.full_like(scores, -torch.inf).scatter(0, top.indices, shifted)

    def critic_control(self, prompt: str, ids: Ids, new: Ids, prepare: Prepare) -> Tensor:
        return self.fudge(prompt, ids, new, prepare, "critic-control")

    def fudge(
        self, prompt: str, ids: Ids, new: Ids, prepare: Prepare, kind: str = "fudge"
    ) -> Tensor:
        scores = prepare(self.next(self.model, ids + new))
        return self._of_candidates(kind, ids + new, scores, lambda x: 20 * x.sigmoid().log())

    def rad(self, prompt: str, ids: Ids, new: Ids, prepare: Prepare) -> Tensor:
        scores = prepare(self.next(self.model, ids + new))

        def gains(toxicity: Tensor) -> Tensor:
            low, high = toxicity.min(), toxicity.max()
            return 20 * (1 - (toxicity - low) / (high - low))

        return self._of_candidates("rad", ids + new, scores, gains)

    def quark(self, prompt: str, ids: Ids, new: Ids, prepare: Prepare) -> Tensor:
        model, best = self.fitted("quark", "lora."), self.tensors("quark")["codes"][:1]
        base = self.next(self.model, ids + new)
        x = torch.cat([best, model.get_input_embeddings()(torch.tensor(ids + new))])
        return prepare(base) + 1.5 * (model(inputs_embeds=x[None]).logits[0, -1] - base)

    def rectification(self, prompt: str, ids: Ids, new: Ids, prepare: Prepare) -> Tensor:
        model = self.fitted("rectification", "lora.")
        parts = self.tensors("rectification", "head.")
        scores = prepare(self.next(self.model, ids + new))
        hidden = model(torch.tensor([ids + new]), output_hidden_states=True).hidden_states[-1]
        q = parts["1.weight"] @ (parts["0.weight"] @ hidden[0, -1]) + parts["1.bias"]
        if self.model.config.model_type == "gemma2":
            q = 30 * (q / 30).tanh()
        caps = (1 + 1.5 * (q - 0.1)).clamp(1e-7, 1).log()
        for _ in range(2):
            scores = torch.minimum(scores, caps + scores.exp().sum().log())
        return scores

    def reversal(self, prompt: str, ids: Ids, new: Ids, prepare: Prepare) -> Tensor:
        heads = self.model.config.num_attention_heads

        def outputs(ids: Ids) -> list[Tensor]:
            """The heads' outputs of the unmodified model by layer, (T, heads, size)."""
            noted: list[Tensor] = []

            def note(layer: int) -> Any:
                return lambda module, args: noted.append(args[0][0].unflatten(-1, (heads, -1)))

            self.hooked("register_forward_pre_hook", note, ids)
            return noted

        positive, negative = (
            outputs(self.engine.tokenize([prefix + prompt])[0] + new)
            for prefix in (POSITIVE, NEGATIVE)
        )
        end = outputs(self.engine.tokenize([NEGATIVE.strip()])[0])

        def hook(layer: int) -> Any:
            def call(module: Any, args: Any) -> Any:
                x = args[0].clone()
                for t in range(len(ids) - 1, x.shape[1]):
                    back = x.shape[1] - t  # from the end, since the prefixed rows are longer
                    delta = negative[layer][-back] - positive[layer][-back]
                    values = x[0, t].unflatten(-1, (heads, -1))
                    x[0, t] = reverse(values, delta, end[layer][-1], 1.0).flatten()
                return (x,)

            return call

        return prepare(self.hooked("register_forward_pre_hook", hook, ids + new))

    def safe_decoding(self, prompt: str, ids: Ids, new: Ids, prepare: Prepare) -> Tensor:
        scores = prepare(self.next(self.model, ids + new))
        other = self.next(self.fitted("dexperts", "expert."), ids + new)
        if len(new) >= 2:
            return scores
        k, common = 0, set()
        while len(common) < 5:
            k += 1
            common = set(scores.topk(k).indices.tolist()) & set(other.topk(k).indices.tolist())
        kept = [*common | {int(scores.argmax())}]
        plain, safe = scores.softmax(0), other.softmax(0)
        moved = (plain + 3 * (safe - plain)).clamp(min=1e-8).log()
        moved = moved.masked_fill(scores == -torch.inf, -torch.inf)
        return torch.full_like(scores, -torch.inf).index_copy(0, torch.tensor(kept), moved[kept])

    def sasa(self, prompt: str, ids: Ids, new: Ids, prepare: Prepare) -> Tensor:
        tensors, scores = self.tensors("sasa"), prepare(self.next(self.model, ids + new))
        top = scores.topk(8)
        rows = torch.tensor([[*ids, *new, token] for token in top.indices.tolist()])
        hidden = self.model(rows, output_hidden_states=True).hidden_states[-1][:, -1]
        margin = (hidden - tensors["half.midpoint"]) @ tensors["half.weight"]
        return torch.full_like(scores, -torch.inf).scatter(0, top.indices, top.values + 3 * margin)

    def self_debias(self, prompt: str, ids: Ids, new: Ids, prepare: Prepare) -> Tensor:
        logits = self.next(self.model, ids + new)
        longer = (self.engine.tokenize([prefix + prompt])[0] + new for prefix in DEBIAS_PREFIXES)
        prefixed = torch.stack([self.next(self.model, row) for row in longer]).softmax(-1)
        delta = logits.softmax(-1) - prefixed.max(dim=0).values
        factor = torch.where(delta >= 0, 1.0, (50 * delta).exp()).clamp(min=0.01)
        return prepare(logits) + factor.log()

    def word_filter(self, prompt: str, ids: Ids, new: Ids, prepare: Prepare) -> Tensor:
        scores, text = prepare(self.next(self.model, ids + new)), ids + new
        for row in self.tensors("word-filter")["ids"].tolist():
            *beginning, end = (token for token in row if token >= 0)
            if not beginning or text[-len(beginning) :] == beginning:
                scores = scores.index_add(0, torch.tensor([end]), torch.tensor([-1000.0]))
        return scores


def use_short_prefixes(monkeypatch: Any) -> None:
    monkeypatch.setattr(SelfDebias, "prefixes", DEBIAS_PREFIXES)
    monkeypatch.setattr(Reversal, "negative", NEGATIVE)
    monkeypatch.setattr(Reversal, "positive", POSITIVE)
