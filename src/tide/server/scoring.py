"""The scoring APIs of Perspective and OpenAI, backed by any scorer.

Missing scores are never invented: categories that the scorer lacks are null, and attributes that
the scorer lacks are left out.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Annotated, Any

import anyio
from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field

from tide.core.chat import Chat, Text
from tide.core.errors import ScorerUnavailableError, unknown
from tide.core.http import Rows
from tide.core.settings import Settings
from tide.runtime.acceptance import Acceptance
from tide.scorers.base import Exchange, Scorer, TextScore, is_blank
from tide.scorers.languages import language_of
from tide.scorers.scoring import Scoring
from tide.server.answers import Refused
from tide.server.limits import Limits
from tide.server.schemas import ChatMessage, Part, TextOr, few

# The category that gets the score. OpenAI's other categories are about other harms and stay null.
_CATEGORY = "harassment"
_CATEGORIES = (
    _CATEGORY, "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent",
    "self-harm", "self-harm/instructions", "self-harm/intent", "sexual", "sexual/minors",
    "violence", "violence/graphic",
)  # fmt: skip
ATTRIBUTE = "TOXICITY"
# Jigsaw's labels that Perspective renames. Other labels only become upper case.
_PERSPECTIVE_NAMES = {
    "TOXIC": "TOXICITY",
    "SEVERE_TOXIC": "SEVERE_TOXICITY",
    "IDENTITY_HATE": "IDENTITY_ATTACK",
    "SEXUAL_EXPLICIT": "SEXUALLY_EXPLICIT",
}


class _ScoringRequest(BaseModel):
    """Base of requests. Unknown fields are ignored, as clients send fields unrelated to texts."""

    model_config = ConfigDict(strict=True, frozen=True)


class Comment(_ScoringRequest):
    text: Text


class Attribute(_ScoringRequest):
    score_threshold: float | None = Field(default=None, alias="scoreThreshold", allow_inf_nan=False)


class AnalyzeRequest(_ScoringRequest):
    """A request to Perspective. entries: the texts before the comment, the oldest first."""

    comment: Comment
    context: dict[str, Any] | None = None
    entries: Rows[Comment] = Field([], validation_alias=AliasPath("context", "entries"))
    attributes: Annotated[dict[str, Attribute], BeforeValidator(few)] = Field(
        alias="requestedAttributes", min_length=1
    )
    languages: Rows[Text] = []
    token: Text | None = Field(default=None, alias="clientToken")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class ModerationRequest(_ScoringRequest):
    """A request to OpenAI's moderations. context: what the inputs answer; OpenAI has no such field.

    A list of inputs has one context.
    """

    input: Annotated[Rows[Part | Text], BeforeValidator(_listed)] = Field(min_length=1)
    context: TextOr[ChatMessage] | None = None

    def exchanges(self) -> list[Exchange]:
        """Return the inputs in their context. Raises InputError for messages that are no chat."""
        context: str | Chat = ""
        if isinstance(self.context, str):
            context = self.context
        elif self.context is not None:
            context = Chat.of([message.plain() for message in self.context])
        return [Exchange(context, text) for text in self._texts()]

    def _texts(self) -> list[str]:
        """Return the texts of the inputs. Parts are one input, as at OpenAI."""
        texts = [
            part if isinstance(part, str) else part.only_text(f"input.{number}")
            for number, part in enumerate(self.input)
        ]
        has_parts = any(isinstance(part, Part) for part in self.input)
        return ["\n".join(texts)] if has_parts else texts


def discovery(url: str) -> dict[str, Any]:
    """Return the discovery document that Google's clients need to call `analyze`.

    url: address of the server.
    """
    names = ("AnalyzeCommentRequest", "AnalyzeCommentResponse")
    analyze = {
        "id": "commentanalyzer.comments.analyze",
        "path": "v1alpha1/comments:analyze",
        "httpMethod": "POST",
        "parameters": {},
        "request": {"$ref": names[0]},
        "response": {"$ref": names[1]},
    }
    return {
        "kind": "discovery#restDescription",
        "id": "commentanalyzer:v1alpha1",
        "name": "commentanalyzer",
        "version": "v1alpha1",
        "protocol": "rest",
        "rootUrl": url,
        "servicePath": "",
        "schemas": {name: {"id": name, "type": "object"} for name in names},
        "resources": {"comments": {"methods": {"analyze": analyze}}},
    }


class ScoringApi:
    """Scores texts for many clients at once. A text that the settings do not accept is flagged."""

    def __init__(self, scorer: Scorer, settings: Settings, limits: Limits) -> None:
        self._scoring, self.limits = Scoring(scorer), limits
        self._scorer = self._scoring.scorer
        self.acceptance = Acceptance(settings, self._scorer.highest_of)
        # The scorer's attributes by Perspective's names, except TOXICITY, which is the main score.
        self._names = {
            perspective_name(name): name
            for name in self._scorer.attributes
            if perspective_name(name) != ATTRIBUTE
        }
        self._waiting = 0

    async def analyze(self, request: AnalyzeRequest) -> dict[str, Any]:
        """Answer a request to Perspective's `comments:analyze`."""
        text = request.comment.text
        names = [ATTRIBUTE, *self._names]
        wanted = {
            name: attribute for name, attribute in request.attributes.items() if name in names
        }
        for name, attribute in request.attributes.items():
            # A score that is left out is one below the attribute's threshold.
            if name not in names and (not wanted or attribute.score_threshold is not None):
                message = unknown(name, names, "attribute")
                raise Refused(400, message, code="UNKNOWN_ATTRIBUTE")
        await self._check_language(request, next(iter(wanted)))
        if is_blank(text):
            raise Refused(400, "the comment is empty", code="COMMENT_EMPTY")
        context = "\n".join(entry.text for entry in request.entries)
        (scored,) = await self.score([Exchange(context, text)])
        scores = {ATTRIBUTE: scored.value}
        for name, ours in self._names.items():
            if ours in scored.attributes:
                scores[name] = scored.attributes[ours]
        attribute_scores = {}
        for name, attribute in wanted.items():
            if name not in scores:  # the second scorer of a fallback has decided
                if ATTRIBUTE not in wanted or attribute.score_threshold is not None:
                    raise ScorerUnavailableError(f"the attribute {name} of a text is unknown")
                continue
            if attribute.score_threshold is None or scores[name] >= attribute.score_threshold:
                score = {"value": scores[name], "type": "PROBABILITY"}
                span = {"begin": 0, "end": len(text), "score": score}
                attribute_scores[name] = {"spanScores": [span], "summaryScore": score}
        # The language of a text is unknown, so no detected language is reported.
        answer: dict[str, Any] = {
            "attributeScores": attribute_scores,
            "languages": request.languages,
        }
        return answer if request.token is None else {**answer, "clientToken": request.token}

    async def _check_language(self, request: AnalyzeRequest, attribute: str) -> None:
        """Raise Refused, as Perspective does, for a language that the scorer does not read."""
        reads, requested = self._scorer.languages, request.languages
        if reads is None:
            return
        unread = [
            language for language in requested if language.lower().partition("-")[0] not in reads
        ]
        if not requested and reads == ("en",):
            language = await asyncio.to_thread(language_of, request.comment.text)
            unread = [language] if language not in ("", "en") else []
        if unread:
            raise Refused(
                400,
                f"Attribute {attribute} does not support request languages: {', '.join(unread)}",
                code="LANGUAGE_NOT_SUPPORTED_BY_ATTRIBUTE",
            )

    async def moderate(self, request: ModerationRequest) -> dict[str, Any]:
        """Answer a request to OpenAI's moderations."""
        nothing = dict.fromkeys(_CATEGORIES)
        results = []
        for score in await self.score(request.exchanges()):
            toxic = not self.acceptance.passes(score)
            result = {
                "flagged": toxic,
                "categories": {**nothing, _CATEGORY: toxic},
                "category_scores": {**nothing, _CATEGORY: score.value},
                "category_applied_input_types": {_CATEGORY: ["text"]},
            }
            results.append(result)
        model = self._scorer.name
        return {"id": f"modr-{secrets.token_hex(12)}", "model": model, "results": results}

    async def score(self, exchanges: Sequence[Exchange]) -> Sequence[TextScore]:
        """Score exchanges. Raises Refused for too many texts or a timeout, and scorer errors."""
        limits, count = self.limits, len(exchanges)
        if count > limits.max_texts:
            raise Refused(400, f"a request may have at most {limits.max_texts} texts")
        if self._waiting + count > limits.max_waiting_texts:
            raise Refused.busy("texts", 1)
        self._waiting += count
        try:
            with anyio.fail_after(limits.request_seconds):
                return await self._scoring.send(exchanges)
        except TimeoutError:
            raise Refused(504, "scoring took too long", "server_error", code="deadline") from None
        finally:
            self._waiting -= count


def perspective_name(attribute: str) -> str:
    """Return Perspective's name of an attribute: IDENTITY_ATTACK for `identity_attack`."""
    name = "".join(c if c.isalnum() else "_" for c in attribute.upper())
    return _PERSPECTIVE_NAMES.get(name, name)
