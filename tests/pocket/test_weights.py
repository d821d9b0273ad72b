"""The bundled weights: two wheels of 40 MB together, and the reference is rounded already."""

from __future__ import annotations

import runpy
import zlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tide.pocket import CHAT, MODEL, REFERENCE, SCORER, SENTENCE

SCRIPT = Path(__file__).parents[2] / "models" / "round_weights.py"
rounded = runpy.run_path(str(SCRIPT))["rounded"]
WEIGHTS = [folder / "model.safetensors" for folder in (MODEL, REFERENCE, CHAT)]


@pytest.mark.nightly
def test_the_wheels_stay_below_40_megabytes() -> None:
    packed = sum(len(zlib.compress(file.read_bytes())) for file in (*WEIGHTS, SCORER, SENTENCE))
    assert packed < 39.5e6  # the code takes half of one


def test_the_reference_is_what_the_script_makes_of_it() -> None:
    for name, tensor in load_file(REFERENCE / "model.safetensors").items():
        assert torch.equal(rounded(tensor, 1 / 16), tensor), name
