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
from tide.baselines import REGISTRY, load_baseline
from tide.baselines.common.artefacts import (
    fingerprint,
    fit_width,
    load_artefact,
    save_artefact,
    vocabulary,
)
from tide.core.errors import EngineError, InputError
from tide.core.settings import Sampling
from tide.engines.local.engine import TransformersEngine

LEARNED = ("destein", "dexperts", "gedi", "rad", "sasa")
ALL = sorted(name for name in REGISTRY.names() if getattr(REGISTRY.load(name), "learned", False))


def test_a_fingerprint_is_the_models_own(gpt2: World) -> None:
    model = AutoModelForCausalLM.from_pretrained(gpt2.folder)
    assert fingerprint(model) == fingerprint(gpt2.engine.model)
    assert fingerprint(model) == fingerprint(model.to(torch.bfloat16))
    model.lm_head.weight.data[0, 0] += 1
    assert fingerprint(model) != fingerprint(gpt2.engine.model)


@pytest.mark.parametrize("kind", LEARNED)
def test_an_artefact_of_another_model_is_refused(
    gpt2: World, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = make_world(tmp_path_factory.mktemp("other"), "qwen3")
    with pytest.raises(InputError, match=rf"{kind}: .* was fitted for model .*; make one by tide"):
        load_baseline(kind, gpt2.engine, artefacts=other.artefacts)


@pytest.mark.parametrize("kind", LEARNED)
def test_an_artefact_is_missing(gpt2: World, kind: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{kind}: learns something.* tide fit {kind} --model"):
        load_baseline(kind, gpt2.engine)
    with pytest.raises(
        InputError, match=f"{kind}: .*artefact.json is missing; make it by tide fit"
    ):
        load_baseline(kind, gpt2.engine, artefacts=tmp_path)


def test_damaged_artefacts(gpt2: World, tmp_path: Path) -> None:
    def load() -> None:
        load_artefact(tmp_path, "sasa", gpt2.engine.model, "tiny")

    shutil.copytree(gpt2.artefacts / "sasa", tmp_path / "sasa")
    note, weights = tmp_path / "sasa/artefact.json", tmp_path / "sasa/weights.safetensors"
    load()
    whole = note.read_text()
    for text in ("{", "[]", json.dumps({**json.loads(whole), "baseline": "rad"})):
        note.write_text(text)
        with pytest.raises(InputError, match="sasa: "):
            load()
    note.write_text(whole)
    weights.write_bytes(weights.read_bytes()[:40])
    with pytest.raises(InputError, match=r"sasa: .* cannot be read"):
        load()


def tensors_of(folder: Path, kind: str) -> dict[str, torch.Tensor]:
    return load_file(folder / kind / "weights.safetensors")


@pytest.mark.parametrize("kind", LEARNED)
def test_an_artefact_that_lacks_something_is_refused(
    gpt2: World, kind: str, tmp_path: Path
) -> None:
    """Each of its tensors in turn: missing, of another shape, not finite."""
    shutil.copytree(gpt2.artefacts / kind, tmp_path / kind)
    whole, sampling = tensors_of(tmp_path, kind), Sampling(max_new_tokens=2)
    for name in {min(whole), max(whole), *(name for name in whole if "head" in name)}:
        value = whole[name]
        for wrong in (None, value.new_ones(*value.shape, 2), torch.full_like(value, torch.nan)):
            rest = {key: tensor for key, tensor in whole.items() if key != name}
            changed = rest if wrong is None else {**rest, name: wrong}
            save_file(changed, tmp_path / kind / "weights.safetensors")
            with pytest.raises(InputError, match=rf"baseline {kind}: .*{name.split('.')[-1]}|fit"):
                load_baseline(kind, gpt2.engine, artefacts=tmp_path).generate(
                    ["kind"], sampling, [0]
                )
    save_file(whole, tmp_path / kind / "weights.safetensors")
    load_baseline(kind, gpt2.engine, artefacts=tmp_path).generate(["kind"], sampling, [0])


def write_with(world: World, kind: str, artefacts: Path) -> None:
    baseline = load_baseline(kind, world.engine, artefacts=artefacts)
    baseline.config()
    baseline.generate(["kind"], Sampling(max_new_tokens=2), [0])


# Shapes that would fit anything, as one number does.
SHAPES = {"three": (3,), "one": (1,), "a number": (), "one by one": (1, 1), "nothing": (0, 0)}


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("kind", ALL)
def test_tensors_that_are_all_of_a_wrong_shape_are_refused(
    gpt2: World, kind: str, shape: str, tmp_path: Path
) -> None:
    shutil.copytree(gpt2.artefacts / kind, tmp_path / kind)
    wrong = {
        name: torch.zeros(SHAPES[shape], dtype=tensor.dtype)
        for name, tensor in tensors_of(tmp_path, kind).items()
    }
    save_file(wrong, tmp_path / kind / "weights.safetensors")
    with pytest.raises(InputError, match=f"baseline {kind}: ") as caught:
        write_with(gpt2, kind, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\xff", b"[" * 10**5, b"null", b"9" * 5_000])
@pytest.mark.parametrize("file", ["artefact.json", "weights.safetensors"])
def test_damaged_files_are_refused_in_one_line(
    gpt2: World, file: str, data: bytes, tmp_path: Path
) -> None:
    shutil.copytree(gpt2.artefacts / "sasa", tmp_path / "sasa")
    (tmp_path / "sasa" / file).write_bytes(data)
    with pytest.raises(InputError, match="baseline sasa: "):
        load_artefact(tmp_path, "sasa", gpt2.engine.model, "tiny")


def test_a_training_that_diverged_leaves_no_artefact(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"learning_rate: .* lower it"):
        save_artefact(tmp_path / "sasa", {"weight": torch.tensor([torch.nan])}, {})
    assert not list(tmp_path.iterdir())


def test_the_digest_is_that_of_the_contents(gpt2: World, tmp_path: Path) -> None:
    info = {"baseline": "sasa", "model": "tiny", "fingerprint": fingerprint(gpt2.engine.model)}
    digests = []
    for number in (1.0, 1.0, 2.0):
        save_artefact(tmp_path / "sasa", {"weight": torch.tensor([number])}, info)
        artefact = load_artefact(tmp_path, "sasa", gpt2.engine.model, "tiny")
        digests.append(artefact.digest)
    assert digests[0] == digests[1] != digests[2]


def with_auxiliary(world: World, small: Path, artefacts: Path) -> None:
    """Make the `dapt`-like update of `dexperts` one of another model, `small`."""
    shutil.copytree(world.artefacts / "dexperts", artefacts / "dexperts")
    note = artefacts / "dexperts/artefact.json"
    model = AutoModelForCausalLM.from_pretrained(small)
    info = {"auxiliary": str(small), "auxiliary_fingerprint": fingerprint(model)}
    note.write_text(json.dumps({**json.loads(note.read_text()), **info}))


def test_an_auxiliary_model_is_checked(gpt2: World, tmp_path: Path) -> None:
    small = save_causal_lm(tmp_path / "small", "gpt2")
    with_auxiliary(gpt2, small, tmp_path)
    baseline = load_baseline("dexperts", gpt2.engine, artefacts=tmp_path)
    sampling = Sampling(temperature=0.0, max_new_tokens=4)
    own = gpt2.load("dexperts").generate(["kind"], sampling, [0])
    with pytest.raises(InputError, match=r"dapt: its artefact was fitted on the smaller model"):
        load_baseline("dapt", gpt2.engine, artefacts=tmp_path).generate(["kind"], sampling, [0])
    assert baseline.generate(["kind"], sampling, [0]) == own  # the same model by another name
    # Another one in its place.
    model = AutoModelForCausalLM.from_pretrained(small)
    model.lm_head.weight.data *= 2
    model.save_pretrained(small)
    with pytest.raises(InputError, match=r"dexperts: was fitted on another version of '.*small'"):
        load_baseline("dexperts", gpt2.engine, artefacts=tmp_path).generate(["kind"], sampling, [0])
    # The same weights, with other tokens.
    save_causal_lm(small, "gpt2", word_marks=True)
    with pytest.raises(
        InputError, match=r"vocabulary mismatch: the tokens of '.*small' differ from those of"
    ):
        load_baseline("dexperts", gpt2.engine, artefacts=tmp_path).generate(["kind"], sampling, [0])
    shutil.rmtree(small)
    with pytest.raises(EngineError, match="small: no such folder"):
        load_baseline("dexperts", gpt2.engine, artefacts=tmp_path).generate(["kind"], sampling, [0])


def test_vocabularies_differ_by_content(gpt2: World, tmp_path: Path) -> None:
    """Of the same size, but with other tokens."""
    other = TransformersEngine(save_causal_lm(tmp_path, "gpt2", word_marks=True))
    own = gpt2.engine.tokenizer
    assert vocabulary(own) == vocabulary(TransformersEngine(gpt2.folder).tokenizer)
    assert vocabulary(own) != vocabulary(other.tokenizer)


def test_tables_of_one_vocabulary_may_be_padded() -> None:
    logits = torch.tensor([[1.0, -3.0, 2.0]])
    assert fit_width(logits, 2).tolist() == [[1.0, -3.0]]
    assert fit_width(logits, 5).tolist() == [[1.0, -3.0, 2.0, -3.0, -3.0]]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("red:beta=3", "unknown baseline 'red'; did you mean 'rad'"),
        ("rad:bita=3", "baseline rad: no option 'bita'; known: beta, candidates"),
        ("rad:beta=-1", "baseline rad: beta: .*greater than or equal to 0"),
        ("rad:beta=many", "baseline rad: beta: .*number"),
        ("rad:beta=inf", "baseline rad: beta: .*finite"),
        ("sasa:normalize=both", "baseline sasa: normalize: .*'raw' or 'softmax'"),
        ("rad:order=none", "baseline rad: order: .*'warp-shift' or 'shift-warp'"),
    ],
)
def test_bad_specs(gpt2: World, spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_baseline(spec, gpt2.engine, artefacts=gpt2.artefacts)


def test_names_are_normalised(gpt2: World) -> None:
    assert gpt2.load("rad").name == "rad:beta=50"
    assert gpt2.load("rad:candidates=20,beta=50.0").name == "rad:beta=50"
    assert gpt2.load("rad:normalize=clamp").name == "rad:beta=50,normalize=clamp"
