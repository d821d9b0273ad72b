"""Scorers of other servers.

`openai-moderation`: OpenAI's moderation endpoint. OPENAI_API_KEY, OPENAI_BASE_URL (another server's
address), OPENAI_MODERATION_QPS (requests a second, default 5).

`classifier:URL`: a classifier on text-embeddings-inference or vLLM. CLASSIFIER_API_KEY (if the
server needs a key), CLASSIFIER_QPS (requests a second, default 100).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AliasPath, BaseModel, Field, RootModel

from tide.core.errors import InputError, ScorerError, ScorerRefusedError
from tide.core.http import Rows, ServerFailed, need_key
from tide.core.results import Score
from tide.scorers.base import TextScore
from tide.scorers.control_tokens import break_up
from tide.scorers.remote import RemoteScorer, SelfHostedScorer, place_of, url_from

_Parsed = TypeVar("_Parsed", bound=BaseModel)

MODERATION_URL = "https://api.openai.com/v1"
# Categories nearest to "rude or disrespectful"; the other categories concern other harms.
CATEGORIES = ("harassment", "harassment/threatening", "hate", "hate/threatening")


class _Result(BaseModel):
    category_scores: dict[str, Score | None]


class _ModerationReply(BaseModel):
    results: Rows[_Result]


class OpenAIModerationScorer(RemoteScorer):
    """OpenAI's moderation endpoint: the largest score of its categories.

    Each category is an attribute. model: by default a dated version, so that scores stay
    comparable.

    Raises InputError without a key, and ScorerError if the model lacks one of the categories.
    """

    attributes = highest_of = CATEGORIES
    rate_variable, usual_rate = "OPENAI_MODERATION_QPS", 5.0
    check = "OPENAI_API_KEY, its credit, the model's name and the address"

    def __init__(self, model: str = "omni-moderation-2024-09-26") -> None:
        self._key = need_key("OPENAI_API_KEY")
        url = url_from("OPENAI_BASE_URL", MODERATION_URL)
        self._model = model
        where = "" if url == MODERATION_URL else f"@{place_of(url)}"
        super().__init__(f"openai-moderation:{model}{where}", url)

    async def _ask(self, texts: list[str]) -> list[TextScore]:
        body = {"model": self._model, "input": texts}
        reply = await self._request("/moderations", _ModerationReply, body, texts)
        return [self._read(result.category_scores) for result in reply.results]

    def _read(self, row: dict[str, float | None]) -> TextScore:
        scores = {}
        for name in self.attributes:
            if (score := row.get(name)) is None:
                has = ", ".join(category for category, value in row.items() if value is not None)
                raise ScorerError(f"scorer {self.name}: no category {name!r}; it has {has}")
            scores[name] = score
        return TextScore(max(scores.values()), scores)


# Toxic labels of common models, in lower case and without separators.
_TOXIC_LABELS = {
    "abusive", "hate", "hatespeech", "hateful", "identityattack", "identityhate", "insult",
    "obscene", "offensive", "offensivelanguage", "profanity", "severetoxic", "severetoxicity",
    "sexualexplicit", "threat", "toxic", "toxicity", "harmful", "hap",
}  # fmt: skip


def is_toxic(label: str) -> bool:
    """Whether a label is a common name for toxic text."""
    return label.lower().translate({45: None, 95: None, 32: None}) in _TOXIC_LABELS


def toxic_columns(scorer: str, labels: Sequence[str], wanted: str) -> list[int]:
    """Return the indices of the labels `wanted` (comma-separated), else of common toxic labels.

    Without common toxic labels, a single label is toxic. scorer: the scorer's spec without labels,
    for messages. Raises InputError for unknown labels, and if it is unclear which ones are toxic.
    """
    if wanted:
        named = list(dict.fromkeys(wanted.split(",")))
        missing = [label for label in named if label not in labels]
        if missing:
            has = ", ".join(labels)
            raise InputError(f"scorer {scorer}: no label {missing[0]!r}; it has {has}")
        return [labels.index(label) for label in named]
    if toxic := [i for i, label in enumerate(labels) if is_toxic(label)]:
        return toxic
    if len(labels) == 1:
        return [0]
    raise InputError(
        f"scorer {scorer}: it is unclear which labels are toxic ({', '.join(labels)}); append the "
        f"toxic labels, as in {scorer}#LABEL,LABEL"
    )


def check_exclusive(scorer: str, labels: Sequence[str], toxic: Sequence[int]) -> None:
    """Refuse exclusive labels that are all toxic: they add up to 1 for every text.

    scorer: as in `toxic_columns`. toxic: indices of the chosen labels. Raises InputError.
    """
    if all(map(is_toxic, labels)) or len(set(toxic)) == len(labels):
        raise InputError(
            f"scorer {scorer}: its labels ({', '.join(labels)}) exclude each other, so together "
            "they add up to 1 for every text; name the toxic ones, or, if the labels are "
            'independent, load the model with hf: and "problem_type": '
            '"multi_label_classification" in its config.json'
        )


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
    A text longer than the model's context is an error.

    text-embeddings-inference (`/predict`): `classifier:http://HOST:8080#toxic`. By default, labels
    with a common name are toxic, as in `hf`. It applies a softmax even if a model's labels are not
    exclusive, so the score is the sum of the toxic labels.

    vLLM (`/classify`) names only the likeliest class of a text, so the label is the number of the
    toxic class: `classifier:http://HOST:8000#1`.
    """

    family = "CLASSIFIER"
    served = "the served model (vLLM's needs the number of its toxic class, as in #1)"

    def __init__(self, url: str) -> None:
        address, _, wanted = url.partition("#")
        super().__init__("classifier", address)
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
        about: _Parsed = self.portal.run(self._persistently, lambda: self._request(path, kind))
        return about

    def _choose_labels(self, info: _Info, address: str, wanted: str) -> None:
        if info.labels is None:
            raise ScorerRefusedError(f"scorer classifier: {info.model_id} is not a classifier")
        names = list(dict.fromkeys(info.labels.values()))
        columns = toxic_columns(f"classifier:{address}", names, wanted)
        check_exclusive(f"classifier:{address}", names, columns)
        self._labels = frozenset(names)
        self._toxic = [names[i] for i in columns]
        self.attributes = tuple(self._toxic) if len(self._toxic) > 1 else ()
        self.batch_size = min(self.batch_size, info.max_client_batch_size)
        where = info.model_sha[:8] if info.model_sha else place_of(self._url)
        chosen = ",".join(self._toxic)
        self.name = f"classifier:{info.model_id}@{where}#{chosen}"

    async def _ask(self, texts: list[str]) -> list[TextScore]:
        broken_up = [break_up(text) for text in texts]
        if not self._labels:
            body: dict[str, Any] = {"model": self._model, "input": broken_up}
            classes = await self._request("/classify", _Classes, body, texts)
            rows = sorted(classes.data, key=lambda row: row.index)
            if [row.index for row in rows] != [*range(len(texts))]:
                raise ServerFailed(f"the server returned {len(rows)} answers to {len(texts)} texts")
            return [self._score_of_class(row) for row in rows]
        # Each text has its own list, because TEI reads a list of two strings as a pair.
        body = {"inputs": [[text] for text in broken_up], "truncate": False}
        answer = await self._request("/predict", _Predictions, body, texts)
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
