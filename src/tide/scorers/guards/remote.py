"""Guards on a server that speaks OpenAI's API and returns log-probabilities."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from tide.core.http import Client, Rows, ServerFailed, api_root
from tide.scorers.base import TextScore
from tide.scorers.guards.formats import GuardSettings
from tide.scorers.guards.verdicts import Place
from tide.scorers.services.base import place_of
from tide.scorers.services.self_hosted import SelfHostedScorer

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


class RemoteGuard(SelfHostedScorer):
    """A guard on a server that speaks OpenAI's API and returns log-probabilities, such as vLLM.

    The server applies the guard's chat template; a custom prompt is the user's message.
    GUARD_API_KEY holds the key; GUARD_QPS limits requests per second. Further settings: see
    RemoteScorer.
    """

    family = "GUARD"
    batch_size = 1

    def __init__(self, settings: GuardSettings, **options: Any) -> None:
        kind, self._format = settings.resolve()
        self._settings = settings
        super().__init__(f"guard:{settings.model}", settings.url or "", **options)
        self._url = api_root(self._url)
        suffix = f",{digest}" if (digest := settings.digest()) else ""
        self.name = f"guard:{settings.model}@{place_of(self._url)}#{kind}{suffix}"
        self.threshold = settings.threshold

    async def _ask(self, client: Client, texts: list[str]) -> list[TextScore]:
        body = {
            "model": self._settings.model,
            "messages": self._settings.messages(texts[0]),
            "max_tokens": self._format.tokens,
            "temperature": 0.0,
            "logprobs": True,
            "top_logprobs": _LIKELIEST,
        }
        if self._format.arguments:
            body["chat_template_kwargs"] = self._format.arguments
        answer = await self._request(client, "/chat/completions", _Chat, body, texts)
        if len(answer.choices) != 1:
            raise ServerFailed(f"the server returned {len(answer.choices)} answers to one text")
        logprobs = answer.choices[0].logprobs
        if logprobs is None or not logprobs.content:
            raise ServerFailed("the answer lacks log-probabilities")
        places = [
            Place(token.token, [(top.token, top.logprob) for top in token.top_logprobs or [token]])
            for token in logprobs.content
        ]
        return [TextScore(self._format.verdict(self.name, places, "").score)]
