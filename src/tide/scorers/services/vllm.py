"""`vllm-classify:URL` and `vllm-score:URL`: classifiers and cross-encoders that vLLM serves.

VLLM_API_KEY holds the key, if the server wants one; VLLM_QPS the requests a second (100).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from tide.core.errors import InputError, ScorerError
from tide.core.http import Client, Rows, ServerFailed
from tide.core.results import Score
from tide.plugins.options import checked
from tide.scorers.labels import how_joined, is_toxic
from tide.scorers.services.base import Said, place_of
from tide.scorers.services.self_hosted import SelfHostedScorer

_Index = Annotated[int, Field(ge=0, le=10**6)]
_Name = Annotated[str, Field(min_length=1, max_length=1000)]
# By how much the probabilities of exclusive classes may miss 1, in half precision.
_ROUNDING = 0.01


class _Model(BaseModel):
    id: _Name


class _Models(BaseModel):
    data: Rows[_Model] = Field(min_length=1)


class _Class(BaseModel):
    index: _Index
    label: str | None = None
    probs: Rows[Score] = Field(min_length=1, max_length=10_000)


class _Classes(BaseModel):
    data: Rows[_Class]


class _Pair(BaseModel):
    index: _Index
    score: float = Field(allow_inf_nan=False)


class _Pairs(BaseModel):
    data: Rows[_Pair]


class _VllmScorer(SelfHostedScorer):
    """Base of scorers that a vLLM server gives; its first model is asked, and is in the name."""

    family = "VLLM"
    kind: str

    def __init__(self, url: str, **options: Any) -> None:
        address, _, self._wanted = url.partition("#")
        super().__init__(self.kind, address, **options)
        # Other clients are given the address with /v1; these paths lie beside it.
        self._url = self._url.removesuffix("/v1")
        models = self._once(lambda client: self._get(client, "/v1/models", _Models)).data
        self._model = models[0].id

    def _in_order(self, rows: list[Any], texts: int) -> list[Any]:
        """The rows by their index, which is that of the text."""
        rows = sorted(rows, key=lambda row: row.index)
        if [row.index for row in rows] != [*range(texts)]:
            raise ServerFailed(f"{len(rows)} scores for {texts} texts")
        return rows


class VllmClassifyScorer(_VllmScorer):
    """The probability of a class, from vLLM's `/classify` (English only if its model is).

    url: the server's address, optionally followed by `#` and the numbers of the toxic classes,
    comma-separated, of which the largest counts: `vllm-classify:http://HOST:8000#1`. Exclusive
    classes (softmax) may be added up: `#sum:1,2`. vLLM names a text's likeliest class alone, so the
    others are known by number. Without one, the only class of a model is taken, or of two the
    second; it is an error if the name of the other is a toxic one. Settings: see RemoteScorer.
    """

    kind = "vllm-classify"

    @checked
    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._how, self._wanted = how_joined(self._wanted)
        if not all(part.isdecimal() for part in self._wanted.split(",") if self._wanted):
            raise InputError(
                f"scorer {self.kind}: {self._wanted!r} is not a number of a class, as in #1"
            )
        self._classes = [int(part) for part in self._wanted.split(",") if part]
        self.attributes = tuple(f"class-{i}" for i in self._classes if len(self._classes) > 1)
        chosen = f"sum:{self._wanted}" if self._how == "sum" else self._wanted
        chosen = f"#{chosen}" if chosen else ""
        self.name = f"{self.kind}:{self._model}@{place_of(self._url)}{chosen}"

    async def _ask(self, client: Client, texts: list[str]) -> list[Said]:
        body = {"model": self._model, "input": texts}
        answer = await self._post(client, "/classify", body, len(texts), _Classes)
        return [self._said_of(row) for row in self._in_order(answer.data, len(texts))]

    def _said_of(self, row: _Class) -> Said:
        classes = self._classes or self._usual(row)
        if (most := max(classes)) >= len(row.probs):
            raise ScorerError(
                f"scorer {self.name}: there is no class {most}; its model has {len(row.probs)}"
            )
        found = {f"class-{i}": row.probs[i] for i in classes}
        if self._how != "sum":
            return Said(max(found.values()), found)
        if abs((total := sum(row.probs)) - 1) > _ROUNDING:
            raise ScorerError(
                f"scorer {self.name}: its classes are not exclusive (they add up to {total:.3f}); "
                "leave out 'sum:'"
            )
        return Said(min(1.0, sum(found.values())), found)

    def _usual(self, row: _Class) -> list[int]:
        if len(row.probs) > 2:
            raise ScorerError(
                f"scorer {self.name}: which of its {len(row.probs)} classes mean toxic? append "
                "their numbers, as in #1"
            )
        best = max(range(len(row.probs)), key=row.probs.__getitem__)
        if len(row.probs) == 2 and best == 0 and row.label is not None and is_toxic(row.label):
            raise ScorerError(f"scorer {self.name}: class 0 is called {row.label}; append #0")
        return [len(row.probs) - 1]


class VllmScoreScorer(_VllmScorer):
    """How well a text fits a description of toxic text, from vLLM's `/score` (cross-encoders).

    url: the server's address, `#` and the description, to which every text is compared:
    `vllm-score:http://HOST:8000#a rude or disrespectful comment`. A score outside [0, 1], as
    embedding models give, is an error. Calibrate it before you read its 0.5 as anybody else's.
    Settings: see RemoteScorer.
    """

    kind = "vllm-score"

    @checked
    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        if not self._wanted.strip():
            raise InputError(
                f"scorer {self.kind}: append what texts are compared to, as in "
                f"{self.kind}:http://HOST#a rude comment"
            )
        self.name = f"{self.kind}:{self._model}@{place_of(self._url)}#{self._wanted}"

    async def _ask(self, client: Client, texts: list[str]) -> list[Said]:
        body = {"model": self._model, "text_1": self._wanted, "text_2": texts}
        answer = await self._post(client, "/score", body, len(texts), _Pairs)
        rows = self._in_order(answer.data, len(texts))
        return [Said(row.score) for row in rows]
