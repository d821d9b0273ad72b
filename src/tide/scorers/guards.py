"""Guards: language models that judge a conversation's last message, in process or on a server.

`guard:MODEL` and `guard:MODEL@http://HOST:PORT`, each with an optional `#FAMILY`. A guard's chat
template holds the wording of its question. The guard writes a verdict such as "unsafe"; the score
is the probability of the toxic verdicts among all verdicts at the verdict's first token.
"""

from __future__ import annotations

import math
import re
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import AliasPath, BaseModel, Field

from tide.core.chat import Chat, in_parts
from tide.core.errors import InputError, ScorerError, guarded
from tide.core.http import Rows, ServerFailed, api_root
from tide.scorers.base import (
    HEALTH_TEXT,
    Exchange,
    Floats,
    PlainScorer,
    Scored,
    Scorer,
    TextScore,
    exchange_of,
)
from tide.scorers.control_tokens import ControlTokens, break_up
from tide.scorers.remote import SelfHostedScorer, place_of

Message = dict[str, str]


@dataclass(frozen=True)
class Family:
    """What the chat template of a family of guards expects, and how its models answer.

    names: parts of the models' names, in lower case without separators. verdicts: the possible
    verdicts, and the toxicity of each in [0, 1]. lead: the text before the verdict. tokens: maximum
    number of tokens of an answer. one_turn: the template takes one user message and one answer, so
    longer conversations become one user message. arguments: variables of the template. header: the
    template needs `add_generation_prompt`.

    question: the user's last message, for templates that take the question there. prompt: the whole
    prompt of a guard without a chat template, of one turn; `{context}` and `{text}` in it are the
    conversation and the answer. `lead`, `arguments`, `question` and `prompt` may hold words about
    the judged message, such as `{role}`: see `_WORDS`.
    """

    names: Sequence[str]
    verdicts: Mapping[str, float]
    lead: str = ""
    tokens: int = 5
    one_turn: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    header: bool = False
    question: str = ""
    prompt: str = ""

    def turns(self, exchange: Exchange) -> list[Message]:
        """Return the conversation with the answer, as turns of user and assistant.

        They alternate and begin with the user, as most families' templates demand: messages of the
        same role are joined, and a system message stands before the user's first. A text that
        answers nothing is the user's. The guard judges the last turn.
        """
        context, text = exchange
        spoken: list[tuple[str, str]]
        if isinstance(context, Chat):
            spoken = [(message.role, "\n".join(message.texts)) for message in context.messages]
        elif context:
            spoken = [("user", context)]
        else:
            spoken, text = [("user", text)], ""
        if self.one_turn or self.prompt:
            spoken = [("user", content) for _, content in spoken]
        if spoken[0][0] == "assistant":
            spoken.insert(0, ("user", ""))
        if text:
            spoken.append(("assistant", text))
        turns: list[Message] = []
        for speaker, content in spoken:
            role = "assistant" if speaker == "assistant" else "user"
            if turns and turns[-1]["role"] == role:
                turns[-1]["content"] += f"\n\n{content}"
            else:
                turns.append({"role": role, "content": content})
        return turns

    def messages(self, turns: Sequence[Message]) -> list[Message]:
        """Return the messages that the guard reads. A whole prompt is one message."""
        role = turns[-1]["role"]
        if self.prompt:
            context = turns[0]["content"]
            text = turns[-1]["content"] if role == "assistant" else ""
            return [{"role": "user", "content": _filled(self.prompt, role, context, text)}]
        if self.question:
            return [*turns, {"role": "user", "content": _filled(self.question, role)}]
        return [*turns]

    def variables(self, role: str) -> dict[str, Any]:
        """Return the variables of the chat template. role: whose message is judged."""
        return {
            name: _filled(value, role) if isinstance(value, str) else value
            for name, value in self.arguments.items()
        }

    def verdict(self, scorer: str, role: str, answer: Sequence[Token], begun: str = "") -> Verdict:
        """Read the verdict in an answer that continues `begun`. Raises ScorerError."""
        verdict = read_verdict(answer, self.verdicts, _filled(self.lead, role), begun)
        if verdict is None:
            beginning = "".join(token.text for token in answer)[:40]
            raise ScorerError(
                f"scorer {scorer}: answered {beginning!r} instead of a verdict "
                f"({', '.join(self.verdicts)}); is it a guard of this family?"
            )
        return verdict


_TABLE = Path(__file__).with_suffix(".toml").read_text("utf-8")
FAMILIES = {name: Family(**values) for name, values in tomllib.loads(_TABLE).items()}
# What placeholders stand for, by the role of the judged message.
_WORDS = {
    "user": {
        "role": "user",
        "judged": "request",
        "subject": "The prompt shall not contain or seek",
    },
    "assistant": {
        "role": "assistant",
        "judged": "response",
        "subject": "The chatbot shall not generate",
    },
}
_PLACES = re.compile(r"\{(context|text|role|judged|subject)\}")


def _filled(template: str, role: str, context: str = "", text: str = "") -> str:
    """Fill in placeholders; those inside the values stay. role: of the judged message."""
    words = {**_WORDS[role], "context": context, "text": text}
    return _PLACES.sub(lambda match: words[match[1]], template)


def _family_of(model: str, name: str) -> str:
    """Return the name of a family, by default of that which the model's name shows.

    Raises InputError.
    """
    bare = re.sub(r"[-_ /\\]", "", model.lower())
    named = [
        known for known, family in FAMILIES.items() if any(part in bare for part in family.names)
    ]
    name = name or next(iter(named), "")
    if name not in FAMILIES:
        problem = f"unknown family {name!r}" if name else "its family is unknown"
        raise InputError(
            f"scorer guard:{model}: {problem}; append # and a family ({', '.join(FAMILIES)})"
        )
    return name


class Token(NamedTuple):
    """A token of an answer, and the texts and log-probabilities of the likeliest tokens there."""

    text: str
    likeliest: Sequence[tuple[str, float]]


class Verdict(NamedTuple):
    """score: in [0, 1]. before: the guard's text before its verdict."""

    score: float
    before: str


_LIKELIEST = 20  # tokens at each position; the most that OpenAI's API returns
_ROUNDING = 0.7  # how far the chosen token's log-probability may be below the highest
# Minimum probability of all verdicts together if the chosen token is not a verdict.
_UNLIKELY = 0.01
_AROUND = " \t\r\n\"'`*_"  # characters that may surround a verdict


def read_verdict(
    answer: Sequence[Token], verdicts: Mapping[str, float], lead: str = "", begun: str = ""
) -> Verdict | None:
    """Return the verdict in an answer, or None if it has none.

    lead: the text before the verdict; any text may precede it, but only spaces, quotes and markup
    may separate lead and verdict. begun: the beginning of the answer, which the prompt holds.

    The score is the mean toxicity of the verdicts that begin with a listed token, weighted by
    probability. Tokens that are not listed count as the most toxic verdict, so the score is never
    lower than with the whole vocabulary.
    """
    written = begun
    for number, (text, likeliest) in enumerate(answer):
        start = written.find(lead)
        if start < 0 or written[start + len(lead) :].strip(_AROUND) or not text.strip(_AROUND):
            written += text
            continue
        chosen = _meant("".join(token.text for token in answer[number:]), verdicts)
        if _meant(text, verdicts) and not chosen:
            return None  # "N/A" begins like "No"
        highest = max(logprob for _, logprob in likeliest)
        if dict(likeliest).get(text, -math.inf) < highest - _ROUNDING:
            return None  # another token was chosen than the listed ones say
        unlisted, known, toxic = 1.0, 0.0, 0.0
        for listed, logprob in likeliest:
            probability = min(1.0, math.exp(logprob))
            unlisted -= probability
            meant = _meant(listed, verdicts)
            if len(meant) == 1:
                known += probability
                toxic += probability * min(meant)
        if known <= (0.0 if chosen else _UNLIKELY):
            return None
        unlisted = max(0.0, unlisted)
        toxic += unlisted * max(verdicts.values())
        return Verdict(min(1.0, toxic / (known + unlisted)), written[len(begun) :])
    return None


def _meant(text: str, verdicts: Mapping[str, float]) -> set[float]:
    """Return the toxicities of verdicts that begin with `text` or that `text` begins with."""
    text = text.lstrip(_AROUND)
    return {
        weight
        for verdict, weight in verdicts.items()
        if text
        and (
            verdict.startswith(text)
            or (text.startswith(verdict) and not text[len(verdict)].isalnum())
        )
    }


def cut_context(context: Any, fits: Callable[[Any], bool]) -> Any:
    """Return the longest end of a context (a text or a `Chat`) for which `fits` is true.

    A text loses its beginning. A chat loses whole messages, the oldest first, and system messages
    after all others. Its last message stays; if it is too long by itself, it loses its beginning.
    """
    if isinstance(context, str):
        return context[_first_enough(len(context), lambda start: fits(context[start:])) :]
    *older, last = context.messages
    order = sorted(range(len(older)), key=lambda number: older[number].role == "system")

    def ending(dropped: int, start: int = 0) -> Chat:
        """Return the chat without so many messages; the last one begins at `start`."""
        messages = [older[number] for number in sorted(order[dropped:])]
        end = last.model_copy(update={"content": last.content[start:]})
        cut: Chat = context.model_copy(update={"messages": (*messages, end)})
        return cut

    dropped = _first_enough(len(older), lambda count: fits(ending(count)))
    if dropped < len(older):
        return ending(dropped)
    longest = max(0, len(last.content.rstrip()) - 1)  # a character stays
    return ending(dropped, _first_enough(longest, lambda start: fits(ending(dropped, start))))


def _first_enough(limit: int, is_enough: Callable[[int], bool]) -> int:
    """Return the least number below `limit` that is enough, or `limit`."""
    return bisect_left(range(limit), True, key=is_enough)


class _Likely(BaseModel):
    token: str
    logprob: float = Field(le=1e-3)  # at most 0, except for rounding


class _Chosen(_Likely):
    top_logprobs: Rows[_Likely] = []


class _Answer(BaseModel):
    tokens: list[_Chosen] = Field(
        default=[], validation_alias=AliasPath("choices", 0, "logprobs", "content")
    )


_MOST_CHARACTERS = 16_000  # of a context, since the server's limit is unknown


def _is_short(context: str | Chat) -> bool:
    texts = [context] if isinstance(context, str) else [m.content for m in context.messages]
    return sum(map(len, texts)) <= _MOST_CHARACTERS


class RemoteGuard(SelfHostedScorer):
    """A guard on a server that speaks OpenAI's API and returns log-probabilities, such as vLLM.

    The server applies the guard's chat template; a whole prompt is the user's message.
    GUARD_API_KEY holds the key; GUARD_QPS limits requests per second.
    """

    family = "GUARD"
    reads = "exchange"
    batch_size = 1

    def __init__(self, model: str, family: str, url: str) -> None:
        name = _family_of(model, family)
        self._family = FAMILIES[name]
        self._model = model
        super().__init__(f"guard:{model}", url)
        self._url = api_root(self._url)
        self.name = f"guard:{model}@{place_of(self._url)}#{name}"

    async def _ask(self, exchanges: list[Any]) -> list[TextScore]:
        context: Any
        context, text = exchange_of(exchanges[0])
        if text:
            context = cut_context(context, _is_short)
        turns = self._family.turns(Exchange(context, text))
        for turn in turns:
            turn["content"] = break_up(turn["content"])
        role = turns[-1]["role"]
        body: dict[str, Any] = {
            "model": self._model,
            "messages": self._family.messages(turns),
            "max_tokens": self._family.tokens,
            "temperature": 0.0,
            "logprobs": True,
            "top_logprobs": _LIKELIEST,
        }
        if variables := self._family.variables(role):
            body["chat_template_kwargs"] = variables
        answer = await self._request("/chat/completions", _Answer, body, exchanges)
        if not answer.tokens:
            raise ServerFailed("the answer lacks log-probabilities")
        tokens = []
        for chosen in answer.tokens:
            likeliest = [(top.token, top.logprob) for top in chosen.top_logprobs or [chosen]]
            tokens.append(Token(chosen.token, likeliest))
        return [TextScore(self._family.verdict(self.name, role, tokens).score)]


_TAGS = re.compile(r"</?\w+>")
# Stands for a message while the template is rendered, so that the template cannot change a message.
_PROBE = "Aa \"'<&>{}\\\n\ue001"
_PROBES = re.compile("\ue000(\\d+)" + re.escape(_PROBE))


class LocalGuard(PlainScorer):
    """A guard that transformers runs.

    The text that a guard writes before its verdict (empty lines, "Safety:") is found once, when the
    guard is loaded. Later prompts end with that text, so the answer's first token is the verdict.
    """

    pace = "sentence"
    reads = "exchange"
    batch = 16  # texts
    _in_parts = False  # whether the chat template reads a message's content as parts
    _begun = ""

    def __init__(self, model: str, family: str = "") -> None:
        from tide.scorers.classifiers import revision_of  # noqa: PLC0415  (torch)

        name = _family_of(model, family)
        self._family = FAMILIES[name]
        self.name = f"guard:{model}"
        with guarded(ScorerError, f"scorer {self.name}: cannot be loaded"):
            config = self._load(model)
            limit = getattr(config.get_text_config(), "max_position_embeddings", 1 << 20)
        self._limit = limit - self._family.tokens
        self.name += f"{revision_of(model, config)}#{name}"
        self._control = ControlTokens(self._tokenizer)
        self._try_out()

    def score(self, texts: Sequence[Scored]) -> Floats:
        exchanges = [exchange_of(text) for text in texts]
        scores: list[float] = []
        tokens = 1 if self._begun else self._family.tokens
        for start in range(0, len(exchanges), self.batch):
            batch = exchanges[start : start + self.batch]
            answers = self._answers([self._prompt(exchange) for exchange in batch], tokens)
            for exchange, answer in zip(batch, answers, strict=True):
                role = self._family.turns(exchange)[-1]["role"]
                verdict = self._family.verdict(self.name, role, answer, self._begun)
                scores.append(verdict.score)
        return np.array(scores, dtype=np.float64)

    def close(self) -> None:
        del self._model

    def _load(self, model: str) -> Any:
        """Load tokenizer and model, and return the model's config. May raise any exception."""
        from transformers import AutoModelForCausalLM  # noqa: PLC0415  (slow import)

        from tide.core import pretrained  # noqa: PLC0415  (torch)

        self._device = pretrained.find_device("auto")
        self._tokenizer, self._model = pretrained.load_pretrained(
            AutoModelForCausalLM, model, self._device, "auto"
        )
        rows = len(self._model.get_input_embeddings().weight)
        pretrained.check_tokenizer(self._tokenizer, rows)
        return self._model.config

    def _answers(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[Token]]:
        """Generate the likeliest answer to each prompt (token ids), of at most `tokens` tokens."""
        import torch  # noqa: PLC0415  (slow import)
        from transformers import GenerationConfig  # noqa: PLC0415  (slow import)

        longest = max(map(len, prompts))
        padding = self._tokenizer.pad_token_id or 0
        rows = [[padding] * (longest - len(prompt)) + [*prompt] for prompt in prompts]
        masks = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        config = GenerationConfig(
            max_new_tokens=tokens, do_sample=False, pad_token_id=padding, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        with torch.inference_mode():
            written = self._model.generate(
                torch.tensor(rows, device=self._device),
                attention_mask=torch.tensor(masks, device=self._device),
                generation_config=config,
            )
        chosen = written.sequences[:, longest:].tolist()
        answers: list[list[Token]] = [[] for _ in prompts]
        for step, logits in enumerate(written.logits):
            logprobs = logits.double().log_softmax(dim=-1)
            values, indices = logprobs.topk(min(_LIKELIEST, logprobs.shape[-1]))
            for row, answer in enumerate(answers):
                texts = map(self._text, indices[row].tolist())
                likeliest = [*zip(texts, values[row].tolist(), strict=True)]
                answer.append(Token(self._text(chosen[row][step]), likeliest))
        return answers

    def _text(self, token: int) -> str:
        return str(self._tokenizer.decode([token]))

    def _try_out(self) -> None:
        """Find out how the template reads messages, and what the guard writes before a verdict."""
        exchange = Exchange("How is the weather?", HEALTH_TEXT)
        try:
            self._rendered(self._family.turns(exchange))
        except (InputError, ScorerError):
            self._in_parts = True
        with guarded(ScorerError, f"scorer {self.name}: cannot be used"):
            (answer,) = self._answers([self._prompt(exchange)], self._family.tokens)
            before = self._family.verdict(self.name, "assistant", answer).before
        # Reasoning depends on the scored text, so it cannot begin the answers about other texts.
        if not _TAGS.sub("", before.replace(self._family.lead, "")).strip():
            self._begun = before

    def _prompt(self, exchange: Exchange) -> list[int]:
        """Return the token ids of a prompt, whose context is cut to what the guard can read.

        Raises ScorerError if the judged message is too long.
        """
        ids = self._ids(exchange)
        if len(ids) <= self._limit:
            return ids

        def fits(context: str | Chat) -> bool:
            return len(self._ids(Exchange(context, exchange.text))) <= self._limit

        cut = Exchange(cut_context(exchange.context, fits), exchange.text)
        ids = self._ids(cut)
        judged = self._family.turns(exchange)[-1]["content"]
        if len(ids) > self._limit or self._family.turns(cut)[-1]["content"] != judged:
            raise ScorerError(
                f"scorer {self.name}: a text of {len(judged):,} characters is too long for the "
                f"context of {self._limit} tokens; use windows:guard:..."
            )
        return ids

    def _ids(self, exchange: Exchange) -> list[int]:
        """Return the token ids of a prompt; control tokens in its messages are read as text.

        Raises ScorerError for control tokens that cannot be read as text.
        """
        turns = self._family.turns(exchange)
        rendered = self._rendered(turns)
        contents = [self._control.break_up(turn["content"].strip()) for turn in turns]
        ids = self._tokenized(_PROBES.sub(lambda match: contents[int(match[1])], rendered))
        plain = self._tokenized(_PROBES.sub("a", rendered))
        if self._control.count(ids) != self._control.count(plain):
            raise ScorerError(
                f"scorer {self.name}: a text holds control tokens of the guard that cannot be read "
                "as plain text"
            )
        return ids

    def _tokenized(self, prompt: str) -> list[int]:
        # Chat templates and prompts hold the special tokens.
        row = self._tokenizer(prompt + self._begun, add_special_tokens=False)
        ids: list[int] = row["input_ids"]
        return ids

    def _rendered(self, turns: Sequence[Message]) -> str:
        """Render the prompt with a probe for the content of each turn.

        Raises InputError if the template leaves out or changes the judged turn.
        """
        probes = [
            {**turn, "content": f"\ue000{number}{_PROBE}"} for number, turn in enumerate(turns)
        ]
        messages = self._family.messages(probes)
        if self._family.prompt:
            return messages[0]["content"]
        with guarded(ScorerError, f"scorer {self.name}: its chat template failed"):
            rendered: str = self._tokenizer.apply_chat_template(
                in_parts(messages) if self._in_parts else messages,
                add_generation_prompt=self._family.header,
                tokenize=False,
                **self._family.variables(turns[-1]["role"]),
            )
        judged = str(len(turns) - 1)
        if judged not in _PROBES.findall(rendered) or "\ue000" in _PROBES.sub("", rendered):
            raise InputError(
                f"scorer {self.name}: its chat template leaves out or rewrites the text; use the "
                "template that its family published"
            )
        return rendered


def guard(spec: str) -> Scorer:
    """The probability that a guard model calls a text unsafe.

    spec: a folder or hub id, or `MODEL@http://HOST:PORT` on a server. Append `#FAMILY` to a spec
    whose model's name does not show the family.

    Raises InputError for an unknown family, and ScorerError if the guard cannot be loaded or does
    not answer with a verdict.
    """
    named, _, family = spec.partition("#")
    model, at, address = named.partition("@http")
    if not model:
        raise InputError("scorer guard: name a model, as in guard:ID_OR_FOLDER")
    if at:
        return RemoteGuard(model, family, f"http{address}")
    return LocalGuard(model, family)
