"""`tei:URL`: a classifier that Hugging Face's text-embeddings-inference serves.

TEI_API_KEY holds the key, if the server wants one; TEI_QPS the requests a second (100).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, RootModel

from tide.core.errors import ScorerRefusedError
from tide.core.http import Client, Rows, ServerFailed
from tide.core.results import Score
from tide.plugins.options import checked
from tide.scorers.labels import how_joined, toxic_columns
from tide.scorers.services.base import Said, place_of
from tide.scorers.services.self_hosted import SelfHostedScorer

_Name = Annotated[str, Field(min_length=1, max_length=1000)]


class _Labels(BaseModel):
    id2label: dict[str, _Name] = Field(min_length=1)


class _Kind(BaseModel):
    classifier: _Labels | None = None


class _Info(BaseModel):
    model_id: _Name
    model_sha: _Name | None = None
    model_type: _Kind
    max_client_batch_size: int = Field(default=32, ge=1)


class _Prediction(BaseModel):
    label: _Name
    score: Score


class _Predictions(RootModel[list[Any]]):
    root: Rows[Rows[_Prediction]]


class TeiScorer(SelfHostedScorer):
    """The summed probability of the toxic labels of a classifier, from TEI's `/predict`.

    `#max:LABEL,LABEL` takes the largest instead.

    url: the server's address, optionally followed by `#` and the toxic labels, comma-separated:
    `tei:http://HOST:8080#toxic`. Without them, labels with a usual name are taken, as by `hf`. TEI
    gives exclusive probabilities (softmax) of models whose labels are not exclusive, too. A text
    that is longer than the model's context is an error. Settings: see RemoteScorer.
    """

    family = "TEI"

    @checked
    def __init__(self, url: str, **options: Any) -> None:
        address, _, wanted = url.partition("#")
        super().__init__("tei", address, **options)
        info = self._once(lambda client: self._get(client, "/info", _Info))
        if info.model_type.classifier is None:
            raise ScorerRefusedError(f"scorer tei: {info.model_id} is not a classifier")
        names = list(dict.fromkeys(info.model_type.classifier.id2label.values()))
        self._how, wanted = how_joined(wanted)
        columns = toxic_columns(f"tei:{address}", names, wanted)
        self._labels = frozenset(names)
        self._toxic = [names[i] for i in columns]
        self.attributes = tuple(self._toxic) if len(self._toxic) > 1 else ()
        self.batch_size = min(self.batch_size, info.max_client_batch_size)
        where = info.model_sha[:8] if info.model_sha else place_of(self._url)
        chosen = ",".join(self._toxic)
        chosen = f"max:{chosen}" if self._how == "max" else chosen
        self.name = f"tei:{info.model_id}@{where}#{chosen}"

    async def _ask(self, client: Client, texts: list[str]) -> list[Said]:
        # A list of two strings would be read as one pair: each text is in a list of its own.
        body = {"inputs": [[text] for text in texts], "truncate": False}
        answer = await self._post(client, "/predict", body, len(texts), _Predictions)
        if len(answer.root) != len(texts):
            raise ServerFailed(f"{len(answer.root)} scores for {len(texts)} texts")
        return [self._said_of(row) for row in answer.root]

    def _said_of(self, row: list[_Prediction]) -> Said:
        found = {one.label: one.score for one in row}
        if found.keys() != self._labels or len(found) != len(row):
            raise ServerFailed("an answer with other labels than its model has")
        scores = {label: found[label] for label in self._toxic}
        score = max(scores.values()) if self._how == "max" else sum(scores.values())
        return Said(min(1.0, score), scores)
