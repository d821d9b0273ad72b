"""A guard in a process of its own: `python tests/scorers/guards/service.py PORT FOLDER LOG`.

It speaks OpenAI's chat API with log-probabilities, as much of it as a scorer asks for. Each text is
in the log before it is answered.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tide.scorers import Scorer, load_scorer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][0]["content"]
        with TURN:
            unsafe = float(SCORER.score([text])[0])
            with LOG.open("a") as log:
                log.write(json.dumps(text) + "\n")
        shares = {"unsafe": max(unsafe, 1e-12), "safe": max(1 - unsafe, 1e-12)}
        tops = [{"token": token, "logprob": math.log(p)} for token, p in shares.items()]
        tops.sort(key=lambda top: -float(top["logprob"]))  # type: ignore[arg-type]
        place: dict[str, Any] = {**tops[0], "top_logprobs": tops}
        answer = {"choices": [{"index": 0, "logprobs": {"content": [place]}}]}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


if __name__ == "__main__":
    port, folder, log_path = sys.argv[1:]
    LOG, TURN = Path(log_path), threading.Lock()
    SCORER: Scorer = load_scorer(f"guard:{folder}")
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    LOG.touch()
    server.serve_forever()
