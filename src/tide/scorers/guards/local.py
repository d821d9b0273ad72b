"""Guards in this process, run by transformers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from tide.core.chat import in_parts
from tide.core.errors import InputError, ScorerError, guarded
from tide.core.pretrained import (
    check_tokenizer,
    end_ids,
    find_device,
    load_pretrained,
)
from tide.scorers.base import HEALTH_TEXT, Floats, PlainScorer
from tide.scorers.classifiers import revision_of
from tide.scorers.control_tokens import ControlTokens
from tide.scorers.guards.formats import GuardSettings
from tide.scorers.guards.verdicts import Place, Verdict

_TAGS = re.compile(r"</?\w+>")
# A probe text, which shows where a template puts a text and whether it changes the text.
_PROBE = "\ue000Aa \"'<&>{}\\\n\ue000"
# Number of the likeliest tokens to read at each position.
_LIKELIEST = 20


class LocalGuard(PlainScorer):
    """A guard that transformers runs, on the device and in the dtype of its settings.

    The text that a guard writes before its verdict (empty lines, "Safety:") is found once, when the
    guard is loaded. Later prompts end with that text, so the answer's first token is the verdict.
    """

    pace = "sentence"

    _tokenizer: Any
    _in_parts = False  # whether the chat template reads a message's content as parts

    def __init__(self, settings: GuardSettings) -> None:
        kind, self._format = settings.resolve()
        self._settings = settings
        self.threshold = settings.threshold
        self.name = f"guard:{settings.model}"
        with guarded(ScorerError, f"scorer {self.name}: cannot be loaded"):
            config = self._load()
            self._context = getattr(config.get_text_config(), "max_position_embeddings", None)
        suffix = f",{digest}" if (digest := settings.digest()) else ""
        self.name += f"{revision_of(settings.model, config)}#{kind}{suffix}"
        self._control = ControlTokens(self._tokenizer)
        self._around_text, self._strip = self._probe_template()
        self._around_ids = self._probe_tokenizer()
        self._begin("")
        self._try_out()

    def score(self, texts: Sequence[str]) -> Floats:
        prompts = [self._prompt(text) for text in texts]
        scores = np.zeros(len(texts))
        by_length = sorted(range(len(texts)), key=lambda i: len(prompts[i]))
        size = self._settings.batch
        for start in range(0, len(texts), size):
            rows = by_length[start : start + size]
            scores[rows] = self._verdicts([prompts[i] for i in rows])
        return scores

    def close(self) -> None:
        del self._model

    def _load(self) -> Any:
        """Load tokenizer and model, and return the model's config. May raise any exception."""
        from transformers import AutoModelForCausalLM  # noqa: PLC0415  (slow import)

        settings = self._settings
        self._device = find_device(settings.device)
        self._tokenizer, self._model = load_pretrained(
            AutoModelForCausalLM, settings.model, self._device, settings.dtype
        )
        check_tokenizer(self._tokenizer, len(self._model.get_input_embeddings().weight))
        return self._model.config

    @torch.inference_mode()
    def _answers(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[Place]]:
        """Generate the likeliest answer to each prompt (token ids), of at most `tokens` tokens."""
        from transformers import GenerationConfig  # noqa: PLC0415  (slow import)

        longest = max(map(len, prompts))
        filling = self._tokenizer.pad_token_id or 0
        ids = torch.full((len(prompts), longest), filling)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        written = self._model.generate(
            ids.to(self._device),
            attention_mask=mask.to(self._device),
            generation_config=GenerationConfig(
                max_new_tokens=tokens,
                do_sample=False,
                eos_token_id=end_ids(self._model, self._tokenizer) or None,
                pad_token_id=filling,
                output_logits=True,
                return_dict_in_generate=True,
            ),
        )
        chosen = written.sequences[:, longest:].cpu()
        answers: list[list[Place]] = [[] for _ in prompts]
        for step, logits in enumerate(written.logits):
            likeliest = logits.double().log_softmax(dim=-1).topk(min(_LIKELIEST, logits.shape[-1]))
            values, tokens_of = likeliest.values.tolist(), likeliest.indices.tolist()
            for row, answer in enumerate(answers):
                texts = [
                    (self._text(i), v) for i, v in zip(tokens_of[row], values[row], strict=True)
                ]
                answer.append(Place(self._text(int(chosen[row, step])), texts))
        return answers

    def _text(self, token: int) -> str:
        return str(self._tokenizer.decode([token]))

    def _verdicts(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        tokens = 1 if self._begun or not self._format.lead else self._format.tokens
        scores: dict[int, float] = {}
        for number, answer in enumerate(self._answers(prompts, tokens)):
            with suppress(ScorerError):  # a longer answer is generated below
                scores[number] = self._verdict(answer).score
        if later := [i for i in range(len(prompts)) if i not in scores]:
            answers = self._answers([prompts[i] for i in later], self._format.tokens)
            scores |= zip(later, (self._verdict(longer).score for longer in answers), strict=True)
        return [scores[i] for i in range(len(prompts))]

    def _verdict(self, answer: Sequence[Place]) -> Verdict:
        return self._format.verdict(self.name, answer, self._begun)

    def _try_out(self) -> None:
        """Find the text that the guard writes before its verdict on a harmless text."""
        policy = self._settings.policy
        if policy is not None and self._settings.prompt is None:
            rendered = self._rendered(HEALTH_TEXT)
            texts = [policy] if isinstance(policy, str) else policy.values()
            if not all(text in rendered for text in texts):
                raise InputError(
                    f"scorer {self.name}: its chat template has no place for a policy; put it into "
                    "a custom prompt (guard:FILE.json)"
                )
        with guarded(ScorerError, f"scorer {self.name}: cannot be used"):
            (answer,) = self._answers([self._prompt(HEALTH_TEXT)], self._format.tokens)
            before = self._verdict(answer).before
        # Reasoning depends on the scored text, so it cannot begin the answers about other texts.
        if not _TAGS.sub("", before.replace(self._format.lead, "")).strip():
            self._begin(before)

    def _begin(self, begun: str) -> None:
        """Set the beginning of all answers."""
        self._begun = begun
        self._expected = self._control.count(self._ids(HEALTH_TEXT))

    def _probe_template(self) -> tuple[list[str], Callable[[str], str]]:
        """Return the prompt's parts around the text, and a function that strips like the template.

        Only a probe passes through the template, so that the template cannot shorten a text. The
        template may repeat the text. A template that loses a text gets it as a part of the content
        (`in_parts`). Raises InputError if the template changes the probe.
        """
        try:
            return self._around_probe()
        except (InputError, ScorerError):
            self._in_parts = True
            with suppress(InputError, ScorerError):
                return self._around_probe()
            raise

    def _around_probe(self) -> tuple[list[str], Callable[[str], str]]:
        rendered = self._rendered(probe := f"\t{_PROBE}\t")
        for strip in (str, str.lstrip, str.rstrip, str.strip):
            around = rendered.split(strip(probe))
            if len(around) > 1 and _PROBE[0] not in "".join(around):
                return around, strip
        raise InputError(
            f"scorer {self.name}: its chat template leaves out or rewrites the text; give a "
            "custom prompt (guard:FILE.json)"
        )

    def _probe_tokenizer(self) -> tuple[list[int], list[int]]:
        """Return the ids that the tokenizer puts before and after a prompt."""
        if self._settings.prompt is None:  # the template writes these tokens
            return [], []
        with guarded(ScorerError, f"scorer {self.name}: cannot be used"):
            bare: list[int] = self._tokenizer(HEALTH_TEXT, add_special_tokens=False)["input_ids"]
            whole: list[int] = self._tokenizer(HEALTH_TEXT)["input_ids"]
            begin = next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
        return whole[:begin], whole[begin + len(bare) :]

    def _prompt(self, text: str) -> list[int]:
        """Return the token ids of the prompt, with the text unchanged and free of control tokens.

        Raises ScorerError for a text whose control tokens cannot be read as plain text, and for a
        text that is too long.
        """
        ids = self._ids(text)
        if self._control.count(ids) != self._expected:
            raise ScorerError(
                f"scorer {self.name}: a text holds control tokens of the guard that cannot be read "
                "as plain text"
            )
        if self._context is not None and len(ids) + self._format.tokens > self._context:
            raise ScorerError(
                f"scorer {self.name}: a text of {len(text):,} characters is too long for the "
                f"context of {self._context} tokens; use windows:guard:..."
            )
        return ids

    def _ids(self, text: str) -> list[int]:
        chunks = self._around_text[:1]
        for after in self._around_text[1:]:
            first, *further = self._control.split(self._strip(text))
            chunks[-1] += first
            chunks += further
            chunks[-1] += after
        chunks[-1] += self._begun
        first_ids, last_ids = self._around_ids
        rows = self._tokenizer(chunks, add_special_tokens=False)["input_ids"]
        return [*first_ids, *(i for row in rows for i in row), *last_ids]

    def _rendered(self, text: str) -> str:
        if self._settings.prompt is not None:
            return self._settings.ask_about(text)
        if getattr(self._tokenizer, "chat_template", None) is None:
            raise ScorerError(
                f"scorer {self.name}: its tokenizer has no chat template; give a prompt in a file "
                "(guard:FILE.json)"
            )
        messages = self._settings.messages(text)
        with guarded(ScorerError, f"scorer {self.name}: its chat template failed"):
            rendered: str = self._tokenizer.apply_chat_template(
                in_parts(messages) if self._in_parts else messages,
                add_generation_prompt=self._format.header,
                tokenize=False,
                **self._format.arguments,
            )
            return rendered
