"""`python -m tests.clients.server`: serves a tiny chat model with random weights."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.chats import CHATML, save_chat_model
from tide.cli import main

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        model = save_chat_model(Path(folder), CHATML)
        sys.argv = ["tide", "serve", "--port", "0", "--served-model-name", "tiny", "--traces"]
        sys.argv += ["--model", str(model), "--strategy", "resample:n=2", "--max-iterations", "2"]
        main()
