from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.baselines.conftest import make_world
from tests.baselines.plain import World
from tests.models import save_causal_lm
from tide.baselines import REGISTRY, load_baseline
from tide.baselines.artefacts import fit_width, load_artefact, save_artefact
from tide.core.errors import EngineError, InputError
from tide.core.settings import Sampling
from tide.engines.base import Completion
from tide.engines.checkpoint import fingerprint

ALL = sorted(name for name in REGISTRY.names() if hasattr(REGISTRY.load(name), "fit"))


def test_a_fingerprint_is_the_models_own(gpt2: World) -> None:
    model = AutoModelForCausalLM.from_pretrained(gpt2.folder)
    assert fingerprint(model) == fingerprint(gpt2.engine.model)
    assert fingerprint(model) == fingerprint(model.to(torch.bfloat16))
    model.lm_head.weight.data[0, 0] += 1
    assert fingerprint(model) != fingerprint(gpt2.engine.model)


def test_artefact_of_another_model_or_missing_is_refused(gpt2: World, tmp_path: Path) -> None:
    other = make_world(tmp_path, "qwen3")
    for artefacts, message in (
        (other.artefacts, "rad: .* was fitted for .*; fit again with tide fit rad"),
        (None, "rad: needs --artefacts FOLDER, made by tide fit rad --model"),
        (tmp_path, r"rad: .* is missing; make it with tide fit"),
    ):
        with pytest.raises(InputError, match=message):
            load_baseline("rad", gpt2.engine, artefacts=artefacts)


def write_with(world: World, kind: str, artefacts: Path) -> list[Completion]:
    baseline = load_baseline(kind, world.engine, artefacts=artefacts)
    return baseline.generate(["kind"], Sampling(temperature=0.0, max_new_tokens=4), [0])


@pytest.mark.parametrize("kind", ALL)
def test_artefact_without_a_finite_tensor_is_refused(
    gpt2: World, kind: str, tmp_path: Path
) -> None:
    shutil.copytree(gpt2.artefacts / kind, tmp_path / kind)
    file = tmp_path / kind / "weights.safetensors"
    whole = load_file(file)
    last = max(whole)
    save_file({name: value for name, value in whole.items() if name != last}, file)
    with pytest.raises(EngineError, match=last.rpartition(".")[2]):
        write_with(gpt2, kind, tmp_path)
    save_file({**whole, last: torch.full_like(whole[last].float(), torch.nan)}, file)
    with pytest.raises(InputError, match=f"baseline {kind}: .*{last} is not finite"):
        write_with(gpt2, kind, tmp_path)


def test_damaged_or_foreign_artefact_is_refused(gpt2: World, tmp_path: Path) -> None:
    shutil.copytree(gpt2.artefacts / "rad", tmp_path / "sasa")
    with pytest.raises(InputError, match="holds no artefact of this baseline"):
        load_artefact(tmp_path, "sasa", gpt2.engine.model, "tiny")
    (tmp_path / "sasa/weights.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"baseline sasa: .* cannot be read"):
        load_artefact(tmp_path, "sasa", gpt2.engine.model, "tiny")


def test_diverged_training_leaves_no_artefact(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"learning_rate: .* lower it"):
        save_artefact(tmp_path / "sasa", {"weight": torch.tensor([torch.nan])}, {})
    assert not list(tmp_path.iterdir())


def test_an_auxiliary_model_is_checked(gpt2: World, tmp_path: Path) -> None:
    shutil.copytree(gpt2.artefacts / "dexperts", tmp_path / "dexperts")
    unchanged, note = write_with(gpt2, "dexperts", tmp_path), tmp_path / "dexperts/artefact.json"
    small = save_causal_lm(tmp_path / "small", "gpt2")
    model = AutoModelForCausalLM.from_pretrained(small)
    info = {"auxiliary": str(small), "auxiliary_fingerprint": fingerprint(model)}
    note.write_text(json.dumps({**json.loads(note.read_text()), **info}))
    with pytest.raises(InputError, match=r"dapt: its artefact was fitted on "):
        write_with(gpt2, "dapt", tmp_path)
    # The same weights under another name.
    assert write_with(gpt2, "dexperts", tmp_path) == unchanged
    # Other weights in the same folder.
    model.lm_head.weight.data *= 2
    model.save_pretrained(small)
    with pytest.raises(InputError, match=r"dexperts: was fitted on another version of '.*small'"):
        write_with(gpt2, "dexperts", tmp_path)


def test_tables_of_one_vocabulary_may_be_padded() -> None:
    logits = torch.tensor([[1.0, -3.0, 2.0]])
    assert fit_width(logits, 2).tolist() == [[1.0, -3.0]]
    assert fit_width(logits, 5).tolist() == [[1.0, -3.0, 2.0, -3.0, -3.0]]
