"""Local stand-ins of servers that users run: vLLM, text-embeddings-inference, Azure's service."""

from __future__ import annotations

import math
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from tests.scorers.services.stand_ins import Handler, toxicity


def verdicts(text: str) -> list[tuple[str, float]]:
    """What a guard's next token would be: the two verdicts, and something else, with logarithms."""
    unsafe = 0.01 + 0.98 * toxicity(text)
    shares = {"unsafe": 0.9 * unsafe, "safe": 0.9 * (1 - unsafe), "I": 0.1}
    return sorted(((t, math.log(p)) for t, p in shares.items()), key=lambda one: -one[1])


class OwnServer(Handler):
    """Base of servers with a failure of each kind."""

    def counted(self, texts: list[str]) -> None:
        with self.server.lock:
            self.server.scored.update(texts)

    def error(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self.send(status, {"error": {"message": str(dict(self.headers)), "code": code}}, headers)


class VllmPooling(OwnServer):
    """vLLM's `/classify` (two classes) and `/score`."""

    def about(self) -> tuple[int, Any]:
        assert self.path == "/v1/models"
        return 200, {"object": "list", "data": [{"id": "some/model", "object": "model"}]}

    def scores(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["model"] == "some/model"
        texts = body["input"] if self.path == "/classify" else body["text_2"]
        self.counted(texts)
        return {
            "id": "x", "object": "list", "created": 1, "model": "some/model",
            "data": [self.row(i, text) for i, text in enumerate(texts)],
            "usage": {"prompt_tokens": 1, "total_tokens": 1},
        }  # fmt: skip

    def row(self, index: int, text: str) -> dict[str, Any]:
        score = toxicity(text)
        if self.path == "/score":
            return {"index": index, "object": "score", "score": score}
        assert self.path == "/classify"
        probs = [1 - score, score]
        label = "toxic" if score > 0.5 else "neutral"
        return {"index": index, "label": label, "probs": probs, "num_classes": 2}

    def wrong_order(self, body: dict[str, Any]) -> None:
        answer = self.scores(body)
        self.send(200, answer | {"data": answer["data"][::-1]})

    def twice_the_same(self, body: dict[str, Any]) -> None:
        answer = self.scores(body)
        self.send(200, answer | {"data": [answer["data"][0]] * len(answer["data"])})

    def too_few(self, body: dict[str, Any]) -> None:
        answer = self.scores(body)
        self.send(200, answer | {"data": answer["data"][1:]})

    def other_classes(self, body: dict[str, Any]) -> None:
        answer = self.scores(body)
        for row in answer["data"]:
            row["probs"] = [0.9, 0.05, 0.05]
        self.send(200, answer)

    def not_exclusive(self, body: dict[str, Any]) -> None:
        answer = self.scores(body)
        for row in answer["data"]:
            row["probs"] = [0.9, 0.8]
        self.send(200, answer)

    def turned_around(self, body: dict[str, Any]) -> None:
        """The first class is the toxic one, and is called so."""
        answer = self.scores(body)
        for row in answer["data"]:
            row["probs"], row["label"] = [0.9, 0.1], "toxic"
        self.send(200, answer)

    def out_of_range(self, body: dict[str, Any]) -> None:
        answer = self.scores(body)
        for row in answer["data"]:
            row |= {"score": -0.25, "probs": [1.2, -0.2]}
        self.send(200, answer)


class Tei(OwnServer):
    """`/predict` of a classifier with three labels; equal to the service in what it refuses."""

    LABELS = ("neutral", "toxic", "insult")
    kind: ClassVar[dict[str, Any]] = {
        "classifier": {
            "id2label": {str(i): name for i, name in enumerate(LABELS)},
            "label2id": {name: i for i, name in enumerate(LABELS)},
        }
    }

    def about(self) -> tuple[int, Any]:
        assert self.path == "/info"
        return 200, {
            "model_id": "some/model", "model_sha": "0123456789abcdef", "model_dtype": "float32",
            "model_type": self.kind, "max_client_batch_size": 4, "version": "1.9.0",
        }  # fmt: skip

    def scores(self, body: dict[str, Any]) -> Any:
        assert self.path == "/predict"
        assert body["truncate"] is False
        assert len(body["inputs"]) <= 4
        # Two strings in a list are one pair to the service.
        assert all(isinstance(one, list) and len(one) == 1 for one in body["inputs"])
        texts = [one[0] for one in body["inputs"]]
        self.counted(texts)
        return [self.row(text) for text in texts]

    def row(self, text: str) -> list[dict[str, Any]]:
        score = toxicity(text)
        found = {"neutral": 1 - score, "toxic": score * 0.75, "insult": score * 0.25}
        rows = [{"label": name, "score": value} for name, value in found.items()]
        return sorted(rows, key=lambda row: -row["score"])

    def too_few(self, body: dict[str, Any]) -> None:
        self.send(200, self.scores(body)[1:])

    def other_labels(self, body: dict[str, Any]) -> None:
        self.send(200, [[{"label": "good", "score": 1.0}] for _ in body["inputs"]])

    def one_flat_list(self, body: dict[str, Any]) -> None:
        self.send(200, [row[0] for row in self.scores(body)])


class Azure(OwnServer):
    """`text:analyze` of Azure AI Content Safety, with eight levels."""

    def scores(self, body: dict[str, Any]) -> dict[str, Any]:
        parts = urlsplit(self.path)
        assert parts.path == "/contentsafety/text:analyze"
        assert parse_qs(parts.query) == {"api-version": ["2024-09-01"]}
        assert self.headers["Ocp-Apim-Subscription-Key"]
        assert body["outputType"] == "EightSeverityLevels"
        self.counted([body["text"]])
        return {
            "blocklistsMatch": [],
            "categoriesAnalysis": [
                {"category": name, "severity": self.severity(name, body["text"])}
                for name in body["categories"]
            ],
        }

    @staticmethod
    def severity(category: str, text: str) -> int:
        return int(toxicity(f"{category} {text}") * 8)

    def one_category_less(self, body: dict[str, Any]) -> None:
        answer = self.scores(body)
        self.send(200, answer | {"categoriesAnalysis": answer["categoriesAnalysis"][1:]})

    def twice_the_same(self, body: dict[str, Any]) -> None:
        """A category once as it is, and once as if there were nothing."""
        answer = self.scores(body)
        rows = answer["categoriesAnalysis"]
        self.send(200, answer | {"categoriesAnalysis": [*rows, rows[0] | {"severity": 0}]})

    def too_severe(self, body: dict[str, Any]) -> None:
        self.send(200, {"categoriesAnalysis": [{"category": "Hate", "severity": 8}]})


class GuardServer(OwnServer):
    """A guard of Llama Guard's kind over OpenAI's chat and completions API, as vLLM serves one."""

    def about(self) -> tuple[int, Any]:
        return 200, {"data": [{"id": "some-guard"}]}

    def scores(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["temperature"] == 0.0
        if self.path == "/v1/chat/completions":
            assert body["logprobs"] is True
            (message,) = body["messages"]
            return {"choices": [{"index": 0, "logprobs": {"content": self.content(message)}}]}
        assert self.path == "/v1/completions"
        texts = [prompt.partition("[")[2].partition("]")[0] for prompt in body["prompt"]]
        self.counted(texts)
        return {"choices": [self.choice(i, text) for i, text in enumerate(texts)]}

    def content(self, message: dict[str, str]) -> list[dict[str, Any]]:
        self.counted([message["content"]])
        places = [[("\n\n", 0.0)], verdicts(message["content"])]
        return [
            {
                "token": place[0][0],
                "logprob": place[0][1],
                "top_logprobs": [{"token": t, "logprob": p, "bytes": None} for t, p in place],
            }
            for place in places
        ]

    def choice(self, index: int, text: str) -> dict[str, Any]:
        found = verdicts(text)
        logprobs = {
            "tokens": [found[0][0]], "token_logprobs": [found[0][1]],
            "top_logprobs": [dict(found)], "text_offset": [0],
        }  # fmt: skip
        return {"index": index, "text": found[0][0], "logprobs": logprobs}

    def no_logprobs(self, body: dict[str, Any]) -> None:
        answer = self.scores(body)
        self.send(200, {"choices": [one | {"logprobs": None} for one in answer["choices"]]})

    def wrong_order(self, body: dict[str, Any]) -> None:
        self.send(200, {"choices": self.scores(body)["choices"][::-1]})

    def too_few(self, body: dict[str, Any]) -> None:
        self.send(200, {"choices": self.scores(body)["choices"][1:]})

    def no_verdict(self, body: dict[str, Any]) -> None:
        place = {"token": "Hello", "logprob": 0.0, "top_logprobs": []}
        self.send(200, {"choices": [{"index": 0, "logprobs": {"content": [place] * 5}}]})

    def impossible(self, body: dict[str, Any]) -> None:
        place = {"token": "safe", "logprob": 3.5, "top_logprobs": []}
        self.send(200, {"choices": [{"index": 0, "logprobs": {"content": [place]}}]})

    def alone(self, body: dict[str, Any]) -> None:
        """The chosen token's log-probability, and no others."""
        place = {"token": "safe", "logprob": math.log(0.75), "top_logprobs": []}
        self.send(200, {"choices": [{"index": 0, "logprobs": {"content": [place]}}]})
