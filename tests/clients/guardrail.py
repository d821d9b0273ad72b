"""`python -m tests.clients.guardrail`: serves litellm's guardrail, by a scorer of one rude word."""

from __future__ import annotations

import json
import sys
import threading

from tests.clients.conftest import KEY
from tests.server.running import running

if __name__ == "__main__":
    with running(scorer="tests.fakes:RudeScorer", keys=(KEY,)) as server:
        print(json.dumps({"serving": server.url}), file=sys.stderr, flush=True)
        threading.Event().wait()
