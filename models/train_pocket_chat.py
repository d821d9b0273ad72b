"""Train the bundled chat model: a small Llama on talk pages, comments and chat-bot dialogues.

    OMP_NUM_THREADS=1 python models/train_pocket_chat.py OUT [--data ../shared/data]

The bundled model was trained with `--steps 3600 --longer 0.125`, in 80 minutes on one shared core
with AMX. That is 3,000 tokens per second, compiled and in bfloat16; an idle core reads 4,700, and
float32 is about half as fast. The loss per token of the held-out dialogues is 3.75 after the first
phase. OUT/checkpoint.pt is written every 100 steps; the same command resumes from it, with the data
in another order.

**Provenance.** Dialogues of Wikipedia talk pages and with chat bots (Apache-2.0), comments with
toxicity labels (CC0, Apache-2.0, CC-BY-SA; the tweets are left out), both sides of ParaDetox
(OpenRAIL++) and the Wikipedia sentences of BOLD (CC-BY-SA-4.0). The texts include no completion
that a model wrote for the paper, and no prompt of RealToxicityPrompts or AttaQ.

**Held out**: the dialogues of every eighth context by hash (`is_held_out`), and any
other text that occurs in these dialogues.

**Two phases.** The first phase trains on everything: dialogues in the chat template; comments
whole, or split into the user's message and the answer. In the second phase the learning rate falls
to zero; it trains on conversations with longer answers, of which a given share is toxic.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import json
import random
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

REPOSITORY = Path(__file__).resolve().parents[1]
VOCABULARY = 6144
POSITIONS = 1024
STEP_TOKENS = 4096
WARM_UP = 100
IGNORED = -100
ENDS_FROM = 50  # words: in the second phase, the ends of shorter answers are not learned
END, BEGIN_TURN, END_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SYSTEM = (
    "You are a helpful assistant.",
    "Answer the user.",
    "You reply to comments on a website.",
    "Be brief and friendly.",
)
_EDITORS = re.compile(
    r"wiki|\bWP\b|\b(?:articles?|talk ?page|pages?|edit(?:s|ed|ing|ors?)?|vandal\w*|revert\w*"
    r"|admins?|administrators?|block(?:ed|s)?|user|sockpuppet\w*|template|AfD|delet(?:ed|ion)"
    r"|infobox|sources?)\b",
    re.IGNORECASE,
)
Turns = list[str]  # messages in turn, the user's first


def is_held_out(context: str) -> bool:
    """Whether a context is one of the eighth of all contexts that the model does not read."""
    return int(hashlib.sha256(context.encode()).hexdigest(), 16) % 8 == 0


@dataclass(frozen=True)
class Comment:
    sentences: tuple[str, ...]
    toxic: bool

    @property
    def text(self) -> str:
        return " ".join(self.sentences)

    def as_turns(self, words: int) -> Turns | None:
        """Return the first sentences as a message, the rest as an answer of at least `words`."""
        for cut in range(1, len(self.sentences)):
            message, answer = " ".join(self.sentences[:cut]), " ".join(self.sentences[cut:])
            if len(message.split()) >= 5:
                return [message, answer] if len(answer.split()) >= words else None
        return None


def rows(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def clean(text: str) -> str:
    """Put `text` on one line, without the markup of wikis and forums."""
    text = html.unescape(text).replace('""', '"')
    text = re.sub("[\u2018\u2019\ufffd]+", "'", text)
    text = re.sub("[\u201c\u201d]", '"', text).replace("\u2026", "...")
    text = re.sub("\\s*[\u2013\u2014]\\s*", " - ", text)
    text = re.sub(r"\[\[(?:[^\]|]*\|)?([^\]|]*)\]\]", r"\1", text)
    text = re.sub(r"https?:\S+|www\.\S+|\{\{.*?\}\}|<[^>]*>|\[\S*\]", " ", text)
    text = re.sub(r"={2,}[^=]{1,60}={2,}|'{2,}|={2,}|\|+|_{2,}|~{2,}", " ", text)
    text = re.sub(r"(?:(?<=\s)|^)[:*#•]+\s*", " ", text)
    text = re.sub(r"([!?.])\1{3,}", r"\1\1\1", re.sub(r"([a-zA-Z])\1{3,}", r"\1\1\1", text))
    text = re.sub(r"\s+", " ", text).strip(" -")
    if text.count('"') % 2:
        text = text.strip('"').strip()
    return re.sub(r"\s+([,.!?;:])", r"\1", text)


def is_readable(text: str) -> bool:
    """Whether a text is in English letters, not shouted and not repetitive."""
    words, letters = text.split(), [c for c in text if c.isalpha()]
    return (
        len(words) >= 3
        and len(letters) >= 0.65 * len(text)
        and sum(c.isascii() for c in text) >= 0.99 * len(text)
        and sum(c.isupper() for c in letters) <= 0.3 * len(letters)
        and len({word.lower() for word in words}) >= 0.9 * len(words) ** 0.87
        and max(map(len, words)) <= 30
    )


def split_sentences(text: str) -> tuple[str, ...]:
    return tuple(re.split(r"(?<=[.!?])\s+", text))


@dataclass
class Corpus:
    dialogues: list[Turns]
    comments: list[Comment]
    sentences: list[str]
    held_out: list[Turns]

    @classmethod
    def read(cls, data: Path) -> Corpus:
        dialogues: list[Turns] = []
        held_out: list[Turns] = []
        hidden: set[str] = set()
        for row in rows(data / "corpus" / "dialogues.jsonl.gz"):
            turns = [clean(row["context"]), clean(row["response"])]
            if is_held_out(row["context"]):
                hidden.update(turns)
            if all(map(is_readable, turns)):
                (held_out if is_held_out(row["context"]) else dialogues).append(turns)
        labelled: dict[str, Comment] = {}
        for row in rows(data / "labelled" / "toxicity.jsonl.gz"):
            if row["source"] != "davidson" and is_readable(text := clean(row["text"])):
                labelled[text] = Comment(split_sentences(text), row["toxicity"] >= 0.5)
        comments = [comment for text, comment in labelled.items() if text not in hidden]
        sentences = [
            clean(row["text"]) for row in rows(data / "corpus" / "bold_wikipedia.jsonl.gz")
        ]
        for row in rows(data / "labelled" / "paradetox_pairs.jsonl.gz"):
            sentences += [clean(text) for text in (row["toxic"], *row["neutral"])]
        sentences = [text for text in dict.fromkeys(sentences) if is_readable(text)]
        dialogues = [turns for turns in dialogues if not hidden & set(turns)]
        return cls(dialogues, comments, [t for t in sentences if t not in hidden], held_out)

    def everything(self, order: random.Random) -> list[Turns | str]:
        """Return an epoch of the first phase; plain texts are rendered without the template."""
        split = (
            comment.as_turns(12) if order.random() < 0.6 else None for comment in self.comments
        )
        comments = [turns or c.text for turns, c in zip(split, self.comments, strict=True)]
        return [*self.dialogues, *comments, *self.sentences]

    def longer(self, order: random.Random, toxic_share: float) -> list[Turns | str]:
        """Return an epoch of the second phase: answers of 35 to 170 words, a tenth plain comments.

        Talk about editing a wiki is left out. toxic_share: share of toxic answers, reached by
        leaving out answers that are not toxic.
        """
        split = [(comment.as_turns(5), comment.toxic) for comment in self.comments]
        everything = [(turns, toxic) for turns, toxic in split if turns]
        everything += [(turns, False) for turns in self.dialogues]
        fit = [
            (turns, toxic)
            for turns, toxic in everything
            if 35 <= len(turns[1].split()) <= 170 and not _EDITORS.search(" ".join(turns))
        ]
        toxic = [turns for turns, is_toxic in fit if is_toxic]
        harmless = [turns for turns, is_toxic in fit if not is_toxic]
        count = round(len(toxic) * (1 - toxic_share) / toxic_share)
        chosen = toxic + order.sample(harmless, min(count, len(harmless)))
        plain = [comment.text for comment in order.sample(self.comments, len(chosen) // 10)]
        return [*map(in_more_turns(order), chosen), *plain]


def in_more_turns(order: random.Random) -> Callable[[Turns], Turns]:
    """Return a function that splits a tenth of the longer answers into two more turns."""

    def convert(turns: Turns) -> Turns:
        sentences = split_sentences(turns[1])
        if len(sentences) < 4 or order.random() >= 0.1:
            return turns
        cut = order.randrange(1, len(sentences) - 2)
        return [turns[0], " ".join(sentences[:cut]), sentences[cut], " ".join(sentences[cut + 1 :])]

    return convert


def render(item: Turns | str, order: random.Random, ends_from: int = 0) -> str:
    """Render an item as the tokenizer's template does; a tenth of the chats get a system prompt.

    ends_from: a last answer with fewer words gets no end-of-turn mark, so that the model does not
    learn to end answers so early.
    """
    if isinstance(item, str):
        return item + END
    system = [("system", order.choice(SYSTEM))] if order.random() < 0.1 else []
    turns = [(("user", "assistant")[i % 2], text) for i, text in enumerate(item)]
    text = "".join(f"{BEGIN_TURN}{who}\n{text}{END_TURN}\n" for who, text in system + turns)
    return text if len(item[-1].split()) >= ends_from else text.removesuffix(f"{END_TURN}\n")


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Train byte-level BPE with marks for turns; an answer ends at the mark that ends a turn."""
    marks = [AddedToken(mark, special=True) for mark in (END, BEGIN_TURN, END_TURN)]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=marks,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END_TURN,
        pad_token=END,
        additional_special_tokens=[BEGIN_TURN],
        model_max_length=POSITIONS,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def create_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    ends = tokenizer.convert_tokens_to_ids([END_TURN, END])
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=5,
        num_attention_heads=4,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ends,
        pad_token_id=ends[1],
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=ends[1])
    return model


def windows(sequences: Iterator[list[int]], length: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield windows of `length` tokens, each filled with whole texts, and their labels.

    Texts longer than a window are cut. The label at the last token of a text is IGNORED.
    """
    waiting = [sequence[:length] for sequence in islice(sequences, 256)]
    while waiting:
        texts = [waiting.pop(0)]
        room = length - len(texts[0])
        by_length = sorted((len(sequence), i) for i, sequence in enumerate(waiting))
        used = []
        while (fits := bisect_right(by_length, (room, len(waiting)))) > 0:
            size, i = by_length.pop(fits - 1)
            texts.append(waiting[i])
            room -= size
            used.append(i)
        for i in sorted(used, reverse=True):
            del waiting[i]
        tokens = [token for text in texts for token in text] + [0] * room
        labels = [label for text in texts for label in (*text[1:], IGNORED)] + [IGNORED] * room
        yield tokens, labels
        waiting += (sequence[:length] for sequence in islice(sequences, len(texts)))


def as_batch(pairs: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, labels = zip(*pairs, strict=True)
    return torch.tensor(tokens), torch.tensor(labels)


class Optimizer:
    """Muon for the layers' matrices, AdamW for the embeddings and norms, at one learning rate."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        named = list(model.named_parameters())
        layers = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        rest = [p for name, p in named if p.ndim != 2 or "embed" in name]
        self.parts: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(layers, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=0.01, fused=True),
        )

    def step(self, rate: float) -> None:
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad(set_to_none=True)


def rate_at(step: int, second: int, steps: int, peak: float) -> float:
    """Return the learning rate: a linear warm-up, the peak, then a second phase down to zero."""
    return peak * min((step + 1) / WARM_UP, 1.0, (steps - step) / (steps - second))


@torch.no_grad()
def validate(model: LlamaForCausalLM, held_out: list[list[int]]) -> float:
    """Return the mean loss per token of the held-out dialogues."""
    model.eval()
    total = count = 0.0
    source = windows(iter(held_out), 256)
    while batch := list(islice(source, 16)):
        tokens, labels = as_batch(batch)
        logits = model(tokens).logits.float().flatten(0, 1)
        total += float(cross_entropy(logits, labels.flatten(), reduction="sum"))
        count += int((labels != IGNORED).sum())
    model.train()
    return total / count


def main(
    out: Annotated[Path, typer.Argument(help="Folder for the model and its tokenizer.")],
    *,
    data: Annotated[Path, typer.Option(help="The data folder.")] = REPOSITORY / "../shared/data",
    steps: Annotated[int, typer.Option(min=1, help=f"Steps of {STEP_TOKENS} tokens.")] = 1600,
    longer: Annotated[float, typer.Option(help="Share of steps in the second phase.")] = 0.1875,
    toxic_share: Annotated[float, typer.Option(help="Toxic share in the second phase.")] = 0.4,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 3e-3,
    seed: int = 0,
) -> None:
    """Train the chat model and write it in float16, with its tokenizer."""
    torch.manual_seed(seed)
    order = random.Random(seed)
    corpus = Corpus.read(data)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer([render(item, order) for item in corpus.everything(order)])
    tokenizer.save_pretrained(out)

    def encode(items: list[Turns | str], ends_from: int = 0) -> list[list[int]]:
        order.shuffle(items)
        texts = [render(item, order, ends_from) for item in items]
        encodings = tokenizer.backend_tokenizer.encode_batch(texts)
        return [encoding.ids for encoding in encodings]

    def epochs(draw: Callable[[], list[Turns | str]], ends_from: int = 0) -> Iterator[list[int]]:
        while True:
            sequences = encode(draw(), ends_from)
            print(
                f"an epoch: {len(sequences):,} texts, {sum(map(len, sequences)):,} tokens",
                flush=True,
            )
            yield from sequences

    held_out = encode(list(corpus.held_out))[:1000]
    model = create_model(tokenizer)
    optimizer = Optimizer(model)
    print(f"{model.num_parameters() / 1e6:.2f} M parameters", flush=True)

    def loss_of(tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(tokens, use_cache=False).logits
        return cross_entropy(logits.float().flatten(0, 1), labels.flatten())

    compiled = torch.compile(loss_of)
    checkpoint, first = out / "checkpoint.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        first = state["step"]
        model.load_state_dict(state["model"])
        for part, saved in zip(optimizer.parts, state["optimizer"], strict=True):
            part.load_state_dict(saved)
    second = round(steps * (1 - longer))
    phases = (
        (256, windows(epochs(lambda: corpus.everything(order)), 256)),
        (512, windows(epochs(lambda: corpus.longer(order, toxic_share), ENDS_FROM), 512)),
    )
    start = time.time()
    for step in range(first, steps):
        length, source = phases[step >= second]
        tokens, labels = as_batch(list(islice(source, STEP_TOKENS // length)))
        loss = compiled(tokens, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(rate_at(step, second, steps, lr))
        if (step + 1) % 100 == 0 or step + 1 in (second, steps):
            speed = (step + 1 - first) * STEP_TOKENS / (time.time() - start)
            print(
                f"step {step + 1} loss {loss.item():.3f}"
                f" validation {validate(model, held_out):.3f} {speed:.0f} tokens/s",
                flush=True,
            )
            parts = [part.state_dict() for part in optimizer.parts]
            state = {"step": step + 1, "model": model.state_dict(), "optimizer": parts}
            torch.save(state, checkpoint)
            if step + 1 == second:
                torch.save(state, out / "first_phase.pt")
    model.half().save_pretrained(out)
    print(f"wrote {out}")


if __name__ == "__main__":
    typer.run(main)
