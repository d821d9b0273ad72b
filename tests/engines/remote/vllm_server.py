"""A server with vLLM's completions API that misbehaves on demand."""

from __future__ import annotations

import base64
import io
import json
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from tide.core.settings import Sampling
from tide.engines.base import Request
from tide.engines.local.engine import TransformersEngine

Answer = tuple[int, Any]
_PAUSE = 0.03  # seconds between events


class VllmServer:
    """Runs a real model behind the API. Use it as a context manager; `stop` and `start` at will.

    requests: the bodies of all completion requests. misbehave: called with each of them; if it
    returns something, this is the answer (status, and JSON or bytes). scale: factor of embeddings
    before the model gets them. most_events: a stream breaks off after this many events; it still
    ends with [DONE] if `says_done`.
    """

    def __init__(self, engine: TransformersEngine) -> None:
        self.engine = engine
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.misbehave: Callable[[dict[str, Any]], Answer | None] = lambda body: None
        self.scale = 1.0
        self.most_events: int | None = None
        self.says_done = False
        self.version = "0.32.0"
        self.max_model_len = engine.context_length
        self._lock = threading.Lock()
        self._port = 0
        self._http: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen, at the same address as before if it was stopped."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(*server._get(self.path))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.keys.append(self.headers["Authorization"])
                status, answer = server._complete(body)
                if body.get("stream") and isinstance(answer, dict) and "choices" in answer:
                    self._stream(answer["choices"][0], body["stream_interval"])
                else:
                    self._send(status, answer)

            def _stream(self, choice: dict[str, Any], size: int) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                events = [{"choices": [part]} for part in _parts(choice, size)]
                most = server.most_events
                for event in events[:most]:
                    self._event(json.dumps(event))
                    time.sleep(_PAUSE)
                if most is None or server.says_done:
                    self._event("[DONE]")

            def _event(self, data: str) -> None:
                self.wfile.write(f"data: {data}\n\n".encode())
                self.wfile.flush()

            def _send(self, status: int, answer: Any) -> None:
                content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                if status == 429:
                    self.send_header("Retry-After", "0.1")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: Any) -> None:
                pass

        self._http = _QuietServer(("127.0.0.1", self._port), Handler)
        self._port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    def __enter__(self) -> VllmServer:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _get(self, path: str) -> Answer:
        if path == "/version":
            return 200, {"version": self.version}
        model = {"id": "served", "root": "/models/served", "max_model_len": self.max_model_len}
        return 200, {"object": "list", "data": [model]}

    def _complete(self, body: dict[str, Any]) -> Answer:
        self.requests.append(body)
        answer = self.misbehave(body)
        if answer is not None:
            return answer
        with self._lock:
            return 200, {"choices": self._choices(body)}

    def _choices(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        engine = self.engine
        if "prompt_embeds" in body:
            prompts = [self.scale * _decoded(text) for text in body["prompt_embeds"]]
        else:
            prompts = [engine._embed_ids(ids) for ids in body["prompt"]]
        sampling = Sampling(
            max_new_tokens=body["max_tokens"],
            temperature=body["temperature"],
            top_p=body.get("top_p", 1.0),
            top_k=body.get("top_k", 0),
            min_new_tokens=body.get("min_tokens", 0),
        )
        stopping = Sampling(stop=body.get("stop", ()))
        never = tuple(map(int, body.get("logit_bias") or ()))
        requests = [Request(x, sampling, body.get("seed") or 0, never) for x in prompts]
        written = engine.portal.run(engine.complete, requests)
        eos = int(engine.stop_ids[0])
        choices: list[dict[str, Any]] = []
        for i, completion in enumerate(written):
            ids = [*completion.token_ids, *([eos] if completion.finish_reason == "stop" else [])]
            choice = {
                "index": i,
                "text": completion.text,
                "finish_reason": completion.finish_reason,
                "stop_reason": None,
                "token_ids": ids,
            }
            if (end := stopping.stop_in(completion.text)) is not None:
                # The ids include the tokens of the stop string, the text does not.
                count = engine.fewest(ids, lambda text: stopping.stop_in(text) is not None)
                found = next(one for one in stopping.stop if completion.text.startswith(one, end))
                choice |= {"text": completion.text[:end], "token_ids": ids[:count]}
                choice |= {"finish_reason": "stop", "stop_reason": found}
            if body.get("logprobs") is not None:
                choice["logprobs"] = {"token_logprobs": [_log_probs(engine, prompts[i])[ids[0]]]}
            if body.get("prompt_logprobs") is not None:
                row = body["prompt"][i]
                values = [_log_probs(engine, prompts[i][:n])[row[n]] for n in range(1, len(row))]
                choice["prompt_logprobs"] = [
                    None,
                    *(
                        {str(token): {"logprob": value, "rank": 1}}
                        for token, value in zip(row[1:], values, strict=True)
                    ),
                ]
            choices.append(choice)
        return choices[::-1]  # in another order than that of their indexes


def _parts(choice: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """The choice in events of `size` tokens; the last one has the finish reason."""
    ids = choice["token_ids"]
    parts: list[dict[str, Any]] = [
        {"index": 0, "text": "", "finish_reason": None, "token_ids": ids[start : start + size]}
        for start in range(0, max(1, len(ids)), size)
    ]
    parts[-1] |= {key: choice[key] for key in ("text", "finish_reason", "stop_reason")}
    return parts


class _QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that gave up waiting


def hang(seconds: float) -> Callable[[dict[str, Any]], Answer | None]:
    """Misbehaviour: answer an error after this time."""

    def misbehave(body: dict[str, Any]) -> Answer:
        time.sleep(seconds)
        return 500, {}

    return misbehave


def _decoded(text: str) -> torch.Tensor:
    tensor: torch.Tensor = torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True)
    return tensor.float()


@torch.inference_mode()
def _log_probs(engine: TransformersEngine, x: torch.Tensor) -> list[float]:
    positions = torch.arange(len(x))[None]
    logits = engine._forward(None, positions, inputs_embeds=x[None]).logits[0, -1]
    values: list[float] = logits.float().log_softmax(-1).tolist()
    return values


if __name__ == "__main__":  # as a separate process, at the given port
    alone = VllmServer(TransformersEngine("pocket"))
    alone._port = int(sys.argv[1])
    alone.start()
    print(json.dumps({"serving": alone.url}), file=sys.stderr, flush=True)
    threading.Event().wait()
