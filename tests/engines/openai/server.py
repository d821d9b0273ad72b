"""A completions server with a tiny made-up model, which misbehaves on demand."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Events = list[dict[str, Any]]
Tell = Callable[[Events], Iterator[bytes]]
DONE = b"data: [DONE]\n\n"
NONE: Mapping[str, str] = {}
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
WORDS = [
    " the", " people", " of", " town", " were", " kind", " and", " old", " morning", " river",
    " she", " said", " that", " it", " was", " good", ".", ",", " dull", " Dull",
]  # fmt: skip


@dataclass
class Broken:
    """A fault of the connection. do: called in place of an answer."""

    do: Callable[[BaseHTTPRequestHandler], None]


class TextServer:
    """Use it as a context manager.

    The model's next word depends on all text before it. tokens: whether it has endpoints for token
    ids. biased: whether it obeys logit_bias. continues: whether it continues an assistant's
    message. strict: refuse fields that OpenAI's API does not have. ends: whether the end is
    likeliest after a text. patient: whether it obeys min_tokens. cut: characters per event; 0: a
    word each. dialect: turns events into bytes, like one kind of server. faults: for requests with
    a marker in their text, what is sent or done instead. message: the events of an answer to a
    chat, in place of the model's. media_type: of streams. refused: fields, with the values that
    are answered with 422. requests, headers: the bodies and headers of all requests. left: number
    of clients that went away.
    """

    def __init__(self, **options: Any) -> None:
        self.tokens, self.biased, self.continues, self.strict, self.cut = True, True, True, False, 0
        self.models: list[dict[str, Any]] = [{"id": "tiny", "max_model_len": 4096}]
        self.dialect: Tell = DIALECTS["OpenAI"]
        self.faults: Mapping[str, tuple[int, Any] | Tell | Broken] = {}
        self.refused: Mapping[str, Callable[[Any], bool]] = {}
        self.message: Callable[[dict[str, Any]], Events | None] = lambda _: None
        self.answer: Callable[[str, dict[str, Any]], tuple[Any, ...] | None] = lambda *_: None
        self.favourite: str | None = None
        self.ends: Callable[[str], bool] = lambda _: False
        self.patient = True
        self.pause = 0.0
        self.media_type = "text/event-stream"
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.left = self.port = 0
        self.__dict__.update(options)
        self._http: _Quiet | None = None

    def start(self) -> None:
        """Listen, at the same address as before if it was stopped."""
        if self._http is not None:
            return
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # it delays small packets by 40 ms

            def do_GET(self) -> None:
                server._reply(self, None)

            def do_POST(self) -> None:
                server._reply(
                    self, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                )

            def log_message(self, *args: Any) -> None:
                pass

        self._http = _Quiet(("127.0.0.1", self.port), Handler)
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Stop listening, and close the connections that are idle."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http.close_connections()
            self._http = None

    @property
    def connections(self) -> int:
        """Number of connections that were made."""
        return 0 if self._http is None else len(self._http.connections)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> TextServer:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    # The model

    def ranked(self, text: str) -> list[int]:
        """Token ids, the likeliest first."""
        digests = [hashlib.sha256(f"{text}\0{word}".encode()).digest() for word in WORDS]
        ranks = sorted(range(len(WORDS)), key=digests.__getitem__)
        if self.favourite is not None:
            ranks.remove(favourite := WORDS.index(self.favourite))
            ranks.insert(0, favourite)
        return ranks

    def written(self, text: str, body: dict[str, Any]) -> tuple[list[str], str]:
        bias = body.get("logit_bias") or {} if self.biased else {}
        if isinstance(bias, list):  # llama.cpp takes pairs, too
            bias = {str(token): value for token, value in bias}
        words: list[str] = []
        for number in range(body["max_tokens"]):
            ranks = [i for i in self.ranked(text) if str(i) not in bias]
            drawn = f"{body['seed']} {number}" if body["temperature"] > 0 else ""
            few = hashlib.sha256(drawn.encode()).digest()[0] % 5 if drawn else 0
            may_end = not self.patient or number >= body.get("min_tokens", 0)
            if self.ends(text) and may_end and few == 0:
                return words, "stop"
            word = WORDS[ranks[few]]
            if word in (body.get("stop") or []):
                return words, "stop"
            words.append(word)
            text += word
        return words, "length"

    # HTTP

    def _reply(self, handler: BaseHTTPRequestHandler, body: Any) -> None:
        path = handler.path
        if (told := self.answer(path, body)) is not None:
            _send(handler, *told)
        elif path == "/v1/models":
            _send(handler, 200, {"data": self.models})
        elif path == "/tokenize" and self.tokens:
            _send(handler, 200, {"tokens": _ids(body["prompt"]), "count": 1})
        elif path == "/detokenize" and self.tokens:
            _send(handler, 200, {"prompt": "".join(map(_text, body["tokens"]))})
        elif path in ("/v1/completions", "/v1/chat/completions"):
            self._complete(handler, body, is_chat="chat" in path)
        else:
            _send(handler, 404, {"error": "Not Found"})

    def _complete(self, handler: BaseHTTPRequestHandler, body: Any, *, is_chat: bool) -> None:
        self.requests.append(body)
        self.headers.append(handler.headers)
        unknown = {"top_k", "min_p", "min_tokens", "repeat_penalty"} & set(body)
        if self.strict and (unknown or "continue_final_message" in body):
            _send(handler, 400, {"error": {"message": f"Unrecognized: {sorted(unknown)}"}})
            return
        if "too long" in json.dumps(body):
            _send(handler, 400, {"error": {"message": "maximum context length exceeded"}})
            return
        if any(name in body and told(body[name]) for name, told in self.refused.items()):
            _send(handler, 422, {"error": f"one of {sorted(self.refused)}", "error_type": "x"})
            return
        tell = self.dialect
        for marker, fault in self.faults.items():
            if marker in json.dumps(body):
                if isinstance(fault, tuple):
                    _send(handler, *fault)
                    return
                if isinstance(fault, Broken):
                    fault.do(handler)
                    return
                tell = fault
        counted = (body.get("stream_options") or {}).get("include_usage")
        end = [{"choices": [], "usage": USAGE}] if counted and tell is DIALECTS["OpenAI"] else []
        if is_chat and (events := self.message(body)) is not None:
            self._stream(handler, tell(events + end))
            return
        sent = {name: value for name, value in body.items() if value is not None}
        body = {"max_tokens": 16, "temperature": 0.0, "seed": 0, **sent}
        text = self._read(body["messages"]) if is_chat else body["prompt"]
        words, reason = self.written(text, body)
        if body.get("stream"):
            self._stream(handler, tell(self._events(words, reason, is_chat) + end))
        else:
            _send(handler, 200, _answer("".join(words), reason, is_chat))

    def _events(self, words: list[str], reason: str, is_chat: bool) -> Events:
        whole, size = "".join(words), self.cut
        parts = [whole[i : i + size] for i in range(0, len(whole), size)] if size else words
        return [_event(part, None, is_chat) for part in parts] + [_event("", reason, is_chat)]

    def _stream(self, handler: BaseHTTPRequestHandler, events: Iterator[bytes]) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", self.media_type)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        try:
            for data in events:
                handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                time.sleep(self.pause)
            handler.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.left += 1

    def _read(self, messages: list[dict[str, str]]) -> str:
        said = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
        goes_on = self.continues and messages[-1]["role"] == "assistant"
        return said if goes_on else f"{said}\nassistant: "


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().process_request(request, client_address)

    def close_connections(self) -> None:
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


def data_of(event: Any) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def told(*events: Any, done: bytes = DONE) -> Iterator[bytes]:
    yield from map(data_of, events)
    yield done


def with_fields(event: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The event with other values for these fields of its choice."""
    (choice,) = event["choices"]
    return {**event, "choices": [{**choice, **fields}]}


def _localai(events: Events) -> Iterator[bytes]:
    """Empty finish reasons before "stop" (Ollama's, too); without `text` if that is empty."""
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    for event in events[:-1]:
        yield data_of({**with_fields(event, finish_reason=""), "usage": usage})
    (last,) = events[-1]["choices"]
    yield data_of({"choices": [{"index": last["index"], "finish_reason": "stop"}], "usage": usage})
    yield from told({"choices": None, "usage": usage})


def _tgi(events: Events) -> Iterator[bytes]:
    """Its own finish reasons, the end token as text, and comments while it waits."""
    yield b":\n\n"
    reason = _reason(events[-1])
    if "delta" in events[-1]["choices"][0]:
        yield from told(*events)
        return
    end = {"finish_reason": "eos_token", "text": "</s>"} if reason == "stop" else {}
    yield from told(
        *(with_fields(event, finish_reason="") for event in events[:-1]),
        with_fields(events[-1], **end),
    )


def _vllm(events: Events) -> Iterator[bytes]:
    """The last text and the finish reason in one event, then an event with the usage."""
    *most, last, end = events
    last = with_fields(last, finish_reason=_reason(end), stop_reason=None)
    return told(*most, last, {"choices": [], "usage": {"total_tokens": 6}})


def _azure(events: Events) -> Iterator[bytes]:
    """A filter's results: for the prompt without choices, for the answer without a text."""
    safe = {"hate": {"filtered": False, "severity": "safe"}}
    filtered = {"content_filter_results": safe, "finish_reason": None, "index": 0}
    offsets = {"check_offset": 44, "start_offset": 44, "end_offset": 198}
    checked = {"choices": [{**filtered, "content_filter_offsets": offsets}], "usage": None}
    prompt = {"choices": [], "prompt_filter_results": [{"content_filter_results": safe}]}
    return told(prompt, *events[:-1], checked, events[-1], checked)


def _more_after_the_end(events: Events) -> Iterator[bytes]:
    """Events after `[DONE]`: one that arrives together with it, and one that arrives later."""
    yield from told(*events, done=DONE + data_of(events[0]))
    yield data_of(events[0])


def _no_index(events: Events) -> Iterator[bytes]:
    for event in events:
        (choice,) = event["choices"]
        del choice["index"]
    return told(*events)


def _counted(events: Events) -> Iterator[bytes]:
    return told(*(with_fields(event, index=str(number)) for number, event in enumerate(events)))


def _ends(stop: str, length: str) -> Tell:
    def tell(events: Events) -> Iterator[bytes]:
        reason = stop if _reason(events[-1]) == "stop" else length
        return told(*events[:-1], with_fields(events[-1], finish_reason=reason))

    return tell


def _null_at_the_end(events: Events) -> Iterator[bytes]:
    (last,) = events[-1]["choices"]
    for field in ("text", "delta"):
        if field in last:
            last[field] = None
    return told(*events)


def _usage_between(events: Events) -> Iterator[bytes]:
    for event in events:
        yield data_of({"id": "x", "usage": {"total_tokens": 6}})
        yield data_of(event)
    yield DONE


def _odd_lines(events: Events) -> Iterator[bytes]:
    """A byte order mark, other fields, comments, and empty data."""
    text = "\ufeff"
    for event in events:
        text += 'event: ping\ndata: {"type": "ping"}\n\n: working\n\nid: 3\ndata:\n\n'
        text += f"data: {json.dumps(event)}\n\n"
    content = text.replace("\n", "\r\n").encode() + b"data: [DONE]"
    for start in range(0, len(content), 50):
        yield content[start : start + 50]


# Modelled on the sources of these servers, and on reports about them.
DIALECTS: dict[str, Tell] = {
    "OpenAI": lambda events: told(*events),
    "LocalAI": _localai,
    "TGI": _tgi,
    "vLLM": _vllm,
    "Azure": _azure,
    "an end told twice": lambda events: told(*events, events[-1]),
    "more after [DONE]": _more_after_the_end,
    "ik_llama.cpp": lambda events: map(data_of, events),  # no [DONE]
    "no index": _no_index,
    "an index that counts events, as a text": _counted,
    "Gemini": _ends("STOP", "MAX_TOKENS"),
    "Mistral": _ends("stop", "model_length"),
    "Anthropic": _ends("end_turn", "max_tokens"),
    "aborted": _ends("stop", "abort"),
    "a null text at the end": _null_at_the_end,
    "usage in events of its own": _usage_between,
    "odd lines": _odd_lines,
}


def _reason(event: dict[str, Any]) -> str | None:
    (choice,) = event["choices"]
    reason: str | None = choice["finish_reason"]
    return reason


def _event(text: str, reason: str | None, is_chat: bool) -> dict[str, Any]:
    part = {"delta": {"content": text}} if is_chat else {"text": text}
    return {"choices": [{"index": 0, "finish_reason": reason, **part}]}


def _answer(text: str, reason: str, is_chat: bool) -> dict[str, Any]:
    part = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
    choice = {"index": 0, "finish_reason": reason, "logprobs": None, **part}
    return {"id": "x", "choices": [choice], "usage": USAGE, "system_fingerprint": "tiny-1"}


def _send(
    handler: BaseHTTPRequestHandler, status: int, answer: Any, headers: Mapping[str, str] = NONE
) -> None:
    content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


def _ids(text: str) -> list[int]:
    """The model's words as their ids; other characters each as an id after these."""
    ids = []
    while text:
        words = [word for word in WORDS if text.startswith(word)]
        word = max(words, key=len, default=text[0])
        ids.append(WORDS.index(word) if words else len(WORDS) + ord(word))
        text = text[len(word) :]
    return ids


def _text(token: int) -> str:
    return WORDS[token] if token < len(WORDS) else chr(token - len(WORDS))
