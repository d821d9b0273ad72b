"""Scorers that query a self-hosted server, which may need a key.

`classifier:URL` is a classifier on text-embeddings-inference or vLLM. CLASSIFIER_API_KEY holds its
key; CLASSIFIER_QPS limits the requests per second (default 100).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AliasPath, BaseModel, Field, RootModel

from tide.core.errors import InputError, ScorerError, ScorerRefusedError
from tide.core.http import Client, Rows, ServerFailed, base_url, read_key
from tide.core.results import Score
from tide.plugins.options import checked
from tide.scorers.base import TextScore
from tide.scorers.control_tokens import break_up
from tide.scorers.labels import check_exclusive, toxic_columns
from tide.scorers.services.base import RemoteScorer, place_of

_Parsed = TypeVar("_Parsed", bound=BaseModel)
_USUAL = {"concurrency": 8, "timeout": 60.0}


class SelfHostedScorer(RemoteScorer):
    """Base of scorers that query a self-hosted server, given by its address.

    family: prefix of the environment variables: FAMILY_API_KEY holds the key (sent as a bearer
    token); FAMILY_QPS limits requests per second (default 100). Further settings: see RemoteScorer.

    The server's tokenizer is unknown, so subclasses send everything that looks like a control token
    with a space in it (`break_up`).
    """

    family: ClassVar[str]
    served = "the served model"
    batch_size = 32
    usual_rate = 100.0
    tells_codes = False  # codes may repeat the text

    def __init__(self, name: str, url: str, *, key: str | None = None, **options: Any) -> None:
        if not url:
            raise InputError(f"scorer {name}: give the server's address, as in {name}:http://HOST")
        self.rate_variable = f"{self.family}_QPS"
        self.check = f"{self.family}_API_KEY, the address and {self.served}"
        self._key = read_key(f"{self.family}_API_KEY", key)
        super().__init__(name, base_url(url, f"scorer {name}"), **{**_USUAL, **options})


_Name = Annotated[str, Field(min_length=1, max_length=1000)]


class _Info(BaseModel):
    model_id: _Name
    model_sha: _Name | None = None
    labels: dict[str, _Name] | None = Field(
        default=None,
        min_length=1,
        validation_alias=AliasPath("model_type", "classifier", "id2label"),
    )
    max_client_batch_size: int = Field(default=32, ge=1)


class _Prediction(BaseModel):
    label: _Name
    score: Score


class _Predictions(RootModel[list[Any]]):
    root: Rows[Rows[_Prediction]]


class _Served(BaseModel):
    model: _Name = Field(validation_alias=AliasPath("data", 0, "id"))


class _Class(BaseModel):
    index: int
    probs: Rows[Score] = Field(min_length=1, max_length=10_000)


class _Classes(BaseModel):
    data: Rows[_Class]


class ServedClassifier(SelfHostedScorer):
    """The probability of the toxic labels of a classifier on a server.

    url: the server's address, optionally followed by `#` and the toxic labels, comma-separated.
    Settings: see RemoteScorer. A text longer than the model's context is an error.

    text-embeddings-inference (`/predict`): `classifier:http://HOST:8080#toxic`. By default, labels
    with a common name are toxic, as in `hf`. It applies a softmax even if a model's labels are not
    exclusive, so the score is the sum of the toxic labels.

    vLLM (`/classify`) names only the likeliest class of a text, so the label is the number of the
    toxic class: `classifier:http://HOST:8000#1`.
    """

    family = "CLASSIFIER"
    served = "the served model (vLLM's needs the number of its toxic class, as in #1)"

    @checked
    def __init__(self, url: str, **options: Any) -> None:
        address, _, wanted = url.partition("#")
        super().__init__("classifier", address, **options)
        self._labels: frozenset[str] = frozenset()  # of text-embeddings-inference
        # Addresses for other clients end in /v1, but the paths used here start at the root.
        self._url = self._url.removesuffix("/v1")
        if wanted.isdecimal():
            served = self._about("/v1/models", _Served)
            self._model, self._class = served.model, int(wanted)
            self.name = f"classifier:{served.model}@{place_of(self._url)}#{wanted}"
        else:
            self._choose_labels(self._about("/info", _Info), address, wanted)

    def _about(self, path: str, kind: type[_Parsed]) -> _Parsed:
        """Return what the server says about its model."""

        async def ask(client: Client) -> _Parsed:
            return await self._request(client, path, kind)

        about: _Parsed = self.portal.run(self._persistently, ask)
        return about

    def _choose_labels(self, info: _Info, address: str, wanted: str) -> None:
        if info.labels is None:
            raise ScorerRefusedError(f"scorer classifier: {info.model_id} is not a classifier")
        names = list(dict.fromkeys(info.labels.values()))
        columns = toxic_columns(f"classifier:{address}", names, wanted)
        fix = "text-embeddings-inference applies a softmax to any model; load this one with hf:"
        check_exclusive(f"classifier:{address}", names, columns, fix)
        self._labels = frozenset(names)
        self._toxic = [names[i] for i in columns]
        self.attributes = tuple(self._toxic) if len(self._toxic) > 1 else ()
        self.batch_size = min(self.batch_size, info.max_client_batch_size)
        where = info.model_sha[:8] if info.model_sha else place_of(self._url)
        chosen = ",".join(self._toxic)
        self.name = f"classifier:{info.model_id}@{where}#{chosen}"

    async def _ask(self, client: Client, texts: list[str]) -> list[TextScore]:
        broken_up = [break_up(text) for text in texts]
        if not self._labels:
            body: dict[str, Any] = {"model": self._model, "input": broken_up}
            classes = await self._request(client, "/classify", _Classes, body, texts)
            rows = sorted(classes.data, key=lambda row: row.index)
            if [row.index for row in rows] != [*range(len(texts))]:
                raise ServerFailed(f"the server returned {len(rows)} answers to {len(texts)} texts")
            return [self._score_of_class(row) for row in rows]
        # Each text has its own list, because TEI reads a list of two strings as a pair.
        body = {"inputs": [[text] for text in broken_up], "truncate": False}
        answer = await self._request(client, "/predict", _Predictions, body, texts)
        return [self._score_of_labels(row) for row in answer.root]

    def _score_of_labels(self, row: list[_Prediction]) -> TextScore:
        by_label = {prediction.label: prediction.score for prediction in row}
        if by_label.keys() != self._labels or len(by_label) != len(row):
            raise ServerFailed("the answer's labels differ from the model's labels")
        scores = {label: by_label[label] for label in self._toxic}
        return TextScore(min(1.0, sum(scores.values())), scores)

    def _score_of_class(self, row: _Class) -> TextScore:
        if self._class >= len(row.probs):
            raise ScorerError(
                f"scorer {self.name}: no class {self._class}; its model has {len(row.probs)} "
                "classes"
            )
        return TextScore(row.probs[self._class])
