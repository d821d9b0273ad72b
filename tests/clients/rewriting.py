"""`python -m tests.clients.rewriting`: serves a guardrail that writes failing sentences anew.

Its model is a scripted one. The key of the clients has that policy; another one's only blocks.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from pathlib import Path

from tests.clients.conftest import BLOCKING_KEY, KEY
from tests.server.running import running
from tests.server.test_policies import digest_of, written
from tests.server.test_rewrite import Script

if __name__ == "__main__":
    keys = {
        name: {"sha256": digest_of(key), "policies": [name]}
        for name, key in (("rewriting", KEY), ("blocking", BLOCKING_KEY))
    }
    policies = {"rewriting": {"guardrail_rewrite": True}, "blocking": {}}
    engine = Script({" Meet": " and" * 100})  # there it finds no end
    with (
        tempfile.TemporaryDirectory() as folder,
        running(
            engine,
            "tests.server.test_drafts:Rude",
            policies=written(Path(folder, "tide.yaml"), policies=policies, keys=keys),
        ) as server,
    ):
        print(json.dumps({"serving": server.url}), file=sys.stderr, flush=True)
        threading.Event().wait()
