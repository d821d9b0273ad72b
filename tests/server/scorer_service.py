"""A scorer as a separate process: `python tests/server/scorer_service.py PORT LOG`.

It serves Perspective's API, and one text in four is toxic to it. Each text is logged with its score
before it is answered.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SECONDS = 0.05  # time of an answer


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["comment"]["text"]
        score = 0.9 if zlib.crc32(text.encode()) % 4 == 0 else 0.1
        time.sleep(SECONDS)
        with LOG.open("a") as log:
            log.write(json.dumps([text, score]) + "\n")
        found = {"TOXICITY": {"summaryScore": {"value": score, "type": "PROBABILITY"}}}
        content = json.dumps({"attributeScores": found, "languages": ["en"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None: ...


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    LOG = Path(sys.argv[2])
    server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    print(json.dumps({"serving": url}), file=sys.stderr, flush=True)
    server.serve_forever()
