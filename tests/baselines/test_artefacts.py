from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.baselines.conftest import World, make_world
from tests.models import save_causal_lm
from tide.baselines import REGISTRY, Generated, load_baseline
from tide.baselines.artefacts import fit_width, load_artefact, save_artefact
from tide.core.errors import InputError
from tide.core.settings import Sampling
from tide.engines.checkpoint import fingerprint

ALL = sorted(name for name in REGISTRY.names() if getattr(REGISTRY.load(name), "learned", False))


def test_a_fingerprint_is_the_models_own(gpt2: World) -> None:
    model = AutoModelForCausalLM.from_pretrained(gpt2.folder)
    assert fingerprint(model) == fingerprint(gpt2.engine.model)
    assert fingerprint(model) == fingerprint(model.to(torch.bfloat16))
    model.lm_head.weight.data[0, 0] += 1
    assert fingerprint(model) != fingerprint(gpt2.engine.model)


def test_artefact_of_another_model_or_missing_is_refused(gpt2: World, tmp_path: Path) -> None:
    other = make_world(tmp_path, "qwen3")
    for artefacts, message in (
        (other.artefacts, "rad: .* was fitted for model .*; fit again with tide fit rad"),
        (None, "rad: needs an artefact; give --artefacts .* tide fit rad --model"),
        (tmp_path, r"rad: .*artefact\.json is missing; make it with tide fit"),
    ):
        with pytest.raises(InputError, match=message):
            load_baseline("rad", gpt2.engine, artefacts=artefacts)


def write_with(world: World, kind: str, artefacts: Path) -> list[Generated]:
    baseline = load_baseline(kind, world.engine, artefacts=artefacts)
    baseline.config()
    return baseline.generate(["kind"], Sampling(temperature=0.0, max_new_tokens=4), [0])


def tensors_of(folder: Path, kind: str) -> dict[str, torch.Tensor]:
    return load_file(folder / kind / "weights.safetensors")


@pytest.mark.parametrize("kind", ["dexperts", "rad"])
def test_artefact_without_a_tensor_is_refused(gpt2: World, kind: str, tmp_path: Path) -> None:
    """Each tensor in turn is missing, of another shape, or not finite."""
    shutil.copytree(gpt2.artefacts / kind, tmp_path / kind)
    whole = tensors_of(tmp_path, kind)
    for name in {min(whole), max(whole), *(name for name in whole if "head" in name)}:
        value = whole[name]
        for wrong in (None, value.new_ones(*value.shape, 2), torch.full_like(value, torch.nan)):
            rest = {key: tensor for key, tensor in whole.items() if key != name}
            changed = rest if wrong is None else {**rest, name: wrong}
            save_file(changed, tmp_path / kind / "weights.safetensors")
            with pytest.raises(InputError, match=rf"baseline {kind}: .*{name.split('.')[-1]}|fit"):
                write_with(gpt2, kind, tmp_path)
    save_file(whole, tmp_path / kind / "weights.safetensors")
    write_with(gpt2, kind, tmp_path)


@pytest.mark.parametrize("shape", [(1,), (0, 0)])
# A word filter has no tensors that must fit the model's.
@pytest.mark.parametrize("kind", [kind for kind in ALL if kind != "word-filter"])
def test_artefact_with_wrong_shapes_is_refused(
    gpt2: World, kind: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    """Includes shapes that broadcast to any other, such as that of one number."""
    shutil.copytree(gpt2.artefacts / kind, tmp_path / kind)
    wrong = {
        name: torch.zeros(shape, dtype=tensor.dtype)
        for name, tensor in tensors_of(tmp_path, kind).items()
    }
    save_file(wrong, tmp_path / kind / "weights.safetensors")
    with pytest.raises(InputError, match=f"baseline {kind}: ") as caught:
        write_with(gpt2, kind, tmp_path)
    assert "\n" not in str(caught.value)


def test_damaged_or_foreign_artefact_is_refused(gpt2: World, tmp_path: Path) -> None:
    for file in ("artefact.json", "weights.safetensors"):
        shutil.copytree(gpt2.artefacts / "sasa", tmp_path / "sasa", dirs_exist_ok=True)
        (tmp_path / "sasa" / file).write_bytes(b"")
        with pytest.raises(InputError, match=r"baseline sasa: .* cannot be read"):
            load_artefact(tmp_path, "sasa", gpt2.engine.model, "tiny")
    shutil.copytree(gpt2.artefacts / "rad", tmp_path / "sasa", dirs_exist_ok=True)
    with pytest.raises(InputError, match="holds no artefact of this baseline"):
        load_artefact(tmp_path, "sasa", gpt2.engine.model, "tiny")


def test_diverged_training_leaves_no_artefact(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"learning_rate: .* lower it"):
        save_artefact(tmp_path / "sasa", {"weight": torch.tensor([torch.nan])}, {})
    assert not list(tmp_path.iterdir())


def test_an_auxiliary_model_is_checked(gpt2: World, tmp_path: Path) -> None:
    def write(kind: str) -> list[Generated]:
        return write_with(gpt2, kind, tmp_path)

    shutil.copytree(gpt2.artefacts / "dexperts", tmp_path / "dexperts")
    unchanged, note = write("dexperts"), tmp_path / "dexperts/artefact.json"
    small = save_causal_lm(tmp_path / "small", "gpt2")
    model = AutoModelForCausalLM.from_pretrained(small)
    info = {"auxiliary": str(small), "auxiliary_fingerprint": fingerprint(model)}
    note.write_text(json.dumps({**json.loads(note.read_text()), **info}))
    with pytest.raises(InputError, match=r"dapt: its artefact was fitted on the smaller model"):
        write("dapt")
    assert write("dexperts") == unchanged  # the same weights under another name
    # Other weights in the same folder.
    model.lm_head.weight.data *= 2
    model.save_pretrained(small)
    with pytest.raises(InputError, match=r"dexperts: was fitted on another version of '.*small'"):
        write("dexperts")


def test_tables_of_one_vocabulary_may_be_padded() -> None:
    logits = torch.tensor([[1.0, -3.0, 2.0]])
    assert fit_width(logits, 2).tolist() == [[1.0, -3.0]]
    assert fit_width(logits, 5).tolist() == [[1.0, -3.0, 2.0, -3.0, -3.0]]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("red:beta=3", "unknown baseline 'red'; did you mean 'rad'"),
        ("rad:bita=3", "baseline rad: no option 'bita'; known: beta, candidates"),
        ("rad:order=none", "baseline rad: order: .*'warp-shift' or 'shift-warp'"),
    ],
)
def test_baseline_spec_with_a_fault_is_refused(gpt2: World, spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        gpt2.load(spec)
