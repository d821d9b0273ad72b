"""Scorers that query a self-hosted server, which may need a key.

`classifier:URL` is a classifier on text-embeddings-inference or vLLM. CLASSIFIER_API_KEY holds its
key; CLASSIFIER_QPS limits the requests per second (default 100).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import AliasPath, BaseModel, Field, RootModel

from tide.core.errors import InputError, ScorerError, ScorerRefusedError
from tide.core.http import Client, Rows, ServerFailed, base_url, read_key
from tide.core.results import Score
from tide.plugins.options import checked
from tide.scorers.base import TextScore
from tide.scorers.control_tokens import break_up
from tide.scorers.labels import check_exclusive, is_toxic, toxic_columns
from tide.scorers.services.base import RemoteScorer, place_of

_USUAL = {"concurrency": 8, "timeout": 60.0}


class SelfHostedScorer(RemoteScorer):
    """Base of scorers that query a self-hosted server, given by its address.

    family: prefix of the environment variables: FAMILY_API_KEY holds the key (sent as a bearer
    token); FAMILY_QPS limits requests per second (default 100). Further settings: see RemoteScorer.

    The server's tokenizer is unknown, so subclasses send everything that looks like a control token
    with a space in it (`break_up`).
    """

    family: ClassVar[str]
    batch_size = 32
    usual_rate = 100.0
    tells_codes = False  # codes may repeat the text

    def __init__(self, name: str, url: str, *, key: str | None = None, **options: Any) -> None:
        if not url:
            raise InputError(f"scorer {name}: give the server's address, as in {name}:http://HOST")
        self.rate_variable = f"{self.family}_QPS"
        self.check = f"{self.family}_API_KEY, the address and the served model"
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


_Index = Annotated[int, Field(ge=0, le=10**6)]


class _Served(BaseModel):
    model: _Name = Field(validation_alias=AliasPath("data", 0, "id"))


class _Class(BaseModel):
    index: _Index
    label: str | None = None
    probs: Rows[Score] = Field(min_length=1, max_length=10_000)


class _Classes(BaseModel):
    data: Rows[_Class]


def in_order(rows: list[Any], texts: int) -> list[Any]:
    """Sort rows by their texts. Raises ServerFailed unless each text has exactly one row."""
    rows = sorted(rows, key=lambda row: row.index)
    if [row.index for row in rows] != [*range(texts)]:
        raise ServerFailed(f"the server returned {len(rows)} answers to {texts} texts")
    return rows


class ServedClassifier(SelfHostedScorer):
    """The probability of the toxic labels of a classifier on a server.

    url: the server's address, optionally followed by `#` and the toxic labels, comma-separated.
    Settings: see RemoteScorer. A text longer than the model's context is an error.

    text-embeddings-inference (`/predict`): `classifier:http://HOST:8080#toxic`. By default, labels
    with a common name are toxic, as in `hf`. It applies a softmax even if a model's labels are not
    exclusive, so the score is the sum of the toxic labels.

    vLLM (`/classify`) names only the likeliest class of a text, so labels are the classes' numbers:
    `classifier:http://HOST:8000#1`. The largest probability counts. By default, a model's only
    class is toxic, or the second of two classes; it is an error if the first has a toxic name.
    """

    family = "CLASSIFIER"

    @checked
    def __init__(self, url: str, **options: Any) -> None:
        address, _, wanted = url.partition("#")
        super().__init__("classifier", address, **options)
        self._labels: frozenset[str] = frozenset()  # of text-embeddings-inference
        model = self.portal.run(self._persistently, self._identify)
        if isinstance(model, _Info):
            self._choose_labels(model, address, wanted)
        else:
            self._choose_classes(model.model, wanted)

    async def _identify(self, client: Client) -> _Info | _Served:
        """Return the model of text-embeddings-inference, else the first model of vLLM."""
        try:
            return await self._request(client, "/info", _Info)
        except ScorerRefusedError:
            # Addresses for other clients end in /v1, but the paths used here start at the root.
            self._url = self._url.removesuffix("/v1")
            return await self._request(client, "/v1/models", _Served)

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

    def _choose_classes(self, model: str, wanted: str) -> None:
        if not all(part.isdecimal() for part in wanted.split(",") if wanted):
            raise InputError(
                f"scorer classifier: {wanted!r} is not a class number, as in #1 (vLLM names only "
                "the likeliest class)"
            )
        self._model = model
        self._classes = [int(part) for part in wanted.split(",") if part]
        self.attributes = tuple(f"class-{i}" for i in self._classes if len(self._classes) > 1)
        self.highest_of = self.attributes
        chosen = f"#{wanted}" if wanted else ""
        self.name = f"classifier:{model}@{place_of(self._url)}{chosen}"

    async def _ask(self, client: Client, texts: list[str]) -> list[TextScore]:
        broken_up = [break_up(text) for text in texts]
        if not self._labels:
            body: dict[str, Any] = {"model": self._model, "input": broken_up}
            classes = await self._request(client, "/classify", _Classes, body, texts)
            return [self._score_of_classes(row) for row in in_order(classes.data, len(texts))]
        # Each text has its own list, because TEI reads a list of two strings as a pair.
        body = {"inputs": [[text] for text in broken_up], "truncate": False}
        answer = await self._request(client, "/predict", _Predictions, body, texts)
        if len(answer.root) != len(texts):
            raise ServerFailed(
                f"the server returned {len(answer.root)} scores for {len(texts)} texts"
            )
        return [self._score_of_labels(row) for row in answer.root]

    def _score_of_labels(self, row: list[_Prediction]) -> TextScore:
        by_label = {prediction.label: prediction.score for prediction in row}
        if by_label.keys() != self._labels or len(by_label) != len(row):
            raise ServerFailed("the answer's labels differ from the model's labels")
        scores = {label: by_label[label] for label in self._toxic}
        return TextScore(min(1.0, sum(scores.values())), scores)

    def _score_of_classes(self, row: _Class) -> TextScore:
        classes = self._classes or self._usual_classes(row)
        if (largest := max(classes)) >= len(row.probs):
            raise ScorerError(
                f"scorer {self.name}: no class {largest}; its model has {len(row.probs)} classes"
            )
        by_class = {f"class-{i}": row.probs[i] for i in classes}
        return TextScore(max(by_class.values()), by_class)

    def _usual_classes(self, row: _Class) -> list[int]:
        if len(row.probs) > 2:
            raise ScorerError(
                f"scorer {self.name}: unclear which of the {len(row.probs)} classes are toxic; "
                "append their numbers, as in #1"
            )
        best = max(range(len(row.probs)), key=row.probs.__getitem__)
        if len(row.probs) == 2 and best == 0 and row.label is not None and is_toxic(row.label):
            raise ScorerError(
                f"scorer {self.name}: class 0 is called {row.label}; append #0 or #1 to choose"
            )
        return [len(row.probs) - 1]
