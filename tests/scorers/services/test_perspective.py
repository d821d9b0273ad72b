from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command import tide
from tests.scorers.services.stand_ins import (
    Perspective,
    Service,
    running,
    toxicity,
)
from tide.core.errors import InputError
from tide.scorers import load_scorer, score_texts
from tide.scorers.services import PerspectiveScorer

KEY = "AIza-Not_A-Real-Key-0123456789"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with running(Perspective) as service:
        monkeypatch.setenv("PERSPECTIVE_API_KEY", KEY)
        monkeypatch.setenv("PERSPECTIVE_URL", service.url)
        yield service


def quick(**options: Any) -> PerspectiveScorer:
    defaults = {"queries_per_second": 5000, "attempts": 3, "backoff": 0.001}
    return PerspectiveScorer(**{**defaults, **options})


def test_speaks_the_wire_format(service: Service) -> None:
    scorer = quick(attribute="INSULT,THREAT")
    texts = ["one text", "another one", "one text"]
    scores = score_texts(scorer, texts).values
    assert scores == pytest.approx([toxicity(text) for text in texts])
    assert scorer.name == f"perspective:INSULT,THREAT@127.0.0.1:{service.server_port}"
    sent = {request["body"]["comment"]["text"]: request for request in service.requests}
    assert len(service.requests) == len(sent) == 2
    assert sent["one text"]["path"] == f"/v1alpha1/comments:analyze?key={KEY}"
    assert sent["one text"]["body"] == {
        "comment": {"text": "one text"},
        "languages": ["en"],
        "requestedAttributes": {"INSULT": {}, "THREAT": {}},
        "doNotStore": True,
    }


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PERSPECTIVE_API_KEY", "", "no key; set the environment variable PERSPECTIVE_API_KEY"),
        ("PERSPECTIVE_API_KEY", "a\nb", "characters that a key cannot have"),
        ("PERSPECTIVE_QPS", "fast", "PERSPECTIVE_QPS: Input should be a valid number"),
        ("PERSPECTIVE_URL", "https://user:password@host", "PERSPECTIVE_URL: an address with a"),
    ],
)
def test_bad_settings(
    service: Service, name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        load_scorer("perspective")


@pytest.mark.parametrize("failure", ["ok", "bad key"])
def test_the_key_is_in_no_output(
    service: Service,
    failure: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Checks everything that a command prints or writes, with the HTTP client's logging on."""
    caplog.set_level(logging.DEBUG)
    service.answer = lambda number: failure
    code = tide("score", "one text", "-s", "perspective", "-o", tmp_path / "scores.jsonl")
    assert code == (0 if failure == "ok" else 1)
    printed = capsys.readouterr()
    written = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "HTTP" in caplog.text
    assert KEY not in caplog.text + printed.out + printed.err + written
