"""Guards on a server that speaks OpenAI's API and returns log-probabilities."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from tide.core.http import Client, Rows, ServerFailed, api_root
from tide.scorers.base import TextScore
from tide.scorers.guards.formats import GuardSettings
from tide.scorers.guards.verdicts import Place
from tide.scorers.services.base import place_of
from tide.scorers.services.self_hosted import SelfHostedScorer, in_order

# The most log-probabilities per token that OpenAI's API returns.
_LIKELIEST = 20
_LogProbability = Annotated[float, Field(ge=-1e9, le=1e-3)]  # at most 0, except for rounding


class _Top(BaseModel):
    token: str
    logprob: _LogProbability


class _Token(_Top):
    top_logprobs: Rows[_Top] = []


class _Content(BaseModel):
    content: list[_Token] | None = None


class _ChatChoice(BaseModel):
    index: int = 0
    logprobs: _Content | None = None


class _Chat(BaseModel):
    choices: Rows[_ChatChoice]


class _LogProbs(BaseModel):
    tokens: Rows[str]
    token_logprobs: Rows[_LogProbability | None]
    top_logprobs: Rows[dict[str, _LogProbability] | None]


class _Completion(BaseModel):
    index: int
    logprobs: _LogProbs | None = None


class _Completions(BaseModel):
    choices: Rows[_Completion]


class RemoteGuard(SelfHostedScorer):
    """A guard on a server that speaks OpenAI's API and returns log-probabilities, such as vLLM.

    By default the server applies the guard's chat template (`/chat/completions`); a custom prompt
    goes to `/completions`. GUARD_API_KEY holds the key; GUARD_QPS limits requests per second.
    Further settings: see RemoteScorer.
    """

    family = "GUARD"

    def __init__(self, settings: GuardSettings, **options: Any) -> None:
        kind, self._format = settings.resolve()
        self._settings = settings
        self.batch_size = settings.batch if settings.api == "completions" else 1
        super().__init__(f"guard:{settings.model}", settings.url or "", **options)
        self._url = api_root(self._url)
        own = f",{digest}" if (digest := settings.digest()) else ""
        self.name = f"guard:{settings.model}@{place_of(self._url)}#{kind}{own}"
        self.threshold = settings.threshold

    async def _ask(self, client: Client, texts: list[str]) -> list[TextScore]:
        if self._settings.api == "chat":
            answers = [await self._chat(client, texts[0])]
        else:
            answers = await self._complete(client, texts)
        begun = self._format.lead if self._settings.api == "completions" else ""
        return [TextScore(self._format.verdict(self.name, one, begun).score) for one in answers]

    async def _chat(self, client: Client, text: str) -> list[Place]:
        body = {
            "model": self._settings.model,
            "messages": self._settings.messages(text),
            "max_tokens": self._format.tokens,
            "temperature": 0.0,
            "logprobs": True,
            "top_logprobs": _LIKELIEST,
        }
        if self._format.arguments:
            body["chat_template_kwargs"] = self._format.arguments
        answer = await self._request(client, "/chat/completions", _Chat, body, [text])
        if len(answer.choices) != 1:
            raise ServerFailed(f"the server returned {len(answer.choices)} answers to one text")
        logprobs = answer.choices[0].logprobs
        if logprobs is None or not logprobs.content:
            raise ServerFailed("the answer lacks log-probabilities")
        return [
            Place(one.token, [(top.token, top.logprob) for top in one.top_logprobs or [one]])
            for one in logprobs.content
        ]

    async def _complete(self, client: Client, texts: list[str]) -> list[list[Place]]:
        body = {
            "model": self._settings.model,
            "prompt": [self._settings.ask_about(text) + self._format.lead for text in texts],
            "max_tokens": self._format.tokens,
            "temperature": 0.0,
            "logprobs": _LIKELIEST,
        }
        answer = await self._request(client, "/completions", _Completions, body, texts)
        return [_places(choice.logprobs) for choice in in_order(answer.choices, len(texts))]


def _places(found: _LogProbs | None) -> list[Place]:
    if found is None or not found.tokens:
        raise ServerFailed("the answer lacks log-probabilities")
    if not len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs):
        raise ServerFailed("the answer's tokens and log-probabilities differ in number")
    places = []
    for token, own, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        likeliest = list(top.items()) if top else []
        if not likeliest and own is None:
            raise ServerFailed("the answer lacks log-probabilities")
        places.append(Place(token, likeliest or [(token, own or 0.0)]))
    return places
