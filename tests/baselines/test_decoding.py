"""The output of every baseline, batched and with caches, against a plain computation."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
from benchmarks.writing import completed

from tests.baselines.conftest import with_nightly
from tests.baselines.plain import STRENGTHS, WARP_FIRST, World, at
from tests.models import ending_with
from tide.baselines import REGISTRY, load_baseline
from tide.baselines.base import Baseline
from tide.core.errors import CompletionError, InputError
from tide.core.settings import Sampling
from tide.engines.local.stream import Stream

PROMPTS = ["The weather", "Rain fell on the quiet town", "kind", "is fine is fine"]
SEEDS = [3, 1, 4, 1]
GREEDY = Sampling(temperature=0.0, max_new_tokens=6)
# With a narrow nucleus, texts depend on whether scores are shifted before it is chosen, or after.
DRAWN = Sampling(temperature=0.8, top_p=0.5, max_new_tokens=6)


def tokens(baseline: Baseline, prompts: list[str], sampling: Sampling, seeds: list[int]) -> list:
    return [g.token_ids for g in baseline.generate(prompts, sampling, seeds)]


def base(world: World, prompts: list[str], sampling: Sampling, seeds: list[int]) -> list:
    ids = world.engine.tokenize(prompts)
    return [c.token_ids for c in completed(world.engine, ids, sampling, seeds)]


def test_every_baseline_is_tested() -> None:
    assert set(REGISTRY.names()) == set(STRENGTHS)


# Architecture and sampling do not interact: each architecture is tested with one sampling.
PAIRS = [
    ("gemma2", GREEDY),
    ("gpt2", DRAWN),
    pytest.param("llama", DRAWN, marks=pytest.mark.nightly),
]
OF_THE_OTHER_ORDER = [f"{STRENGTHS[name]},order=shift-warp" for name in WARP_FIRST]


@pytest.mark.parametrize(("world", "sampling"), PAIRS, indirect=["world"])
@pytest.mark.parametrize("spec", [*STRENGTHS.values(), *OF_THE_OTHER_ORDER])
def test_batches_and_caches_change_nothing(world: World, spec: str, sampling: Sampling) -> None:
    baseline = world.load(spec)
    prompts, seeds = PROMPTS[1:], SEEDS[1:]  # the longest and the shortest among them
    expected = [
        tuple(world.write(spec, prompt, sampling, seed))
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    assert tokens(baseline, prompts, sampling, seeds) == expected
    assert tokens(baseline, prompts[:1], sampling, seeds[:1]) == expected[:1]


@pytest.mark.parametrize(
    ("name", "per_prompt_token", "once", "per_draw", "per_token"),
    [
        ("adlm", 1, 0, 0, 1),
        ("contrastive", 2, 0, 0, 2),
        ("dapt", 1, 0, 0, 1),
        ("destein", 1, 0, 0, 1),
        ("dexperts", 3, 0, 0, 3),
        ("fudge", 2, 0, 8, 1),
        ("pplm", 2, 0, 5, 2),
        ("quark", 2, 1, 0, 2),  # its code
        ("rad", 2, 0, 8, 1),
        ("rectification", 2, 0, 0, 2),
        ("safe-decoding", 2, 1, 0, 1),  # the expert reads the first of its two tokens
        ("sasa", 1, 0, 8, 0),
        ("word-filter", 1, 0, 0, 1),
    ],
)
def test_forward_tokens_of_each_baseline(
    gpt2: World, name: str, per_prompt_token: int, once: int, per_draw: int, per_token: int
) -> None:
    """The count of a row does not depend on the other rows of its batch."""
    baseline = gpt2.load(STRENGTHS[name])
    ids = gpt2.engine.tokenize(PROMPTS)
    written = baseline.generate(PROMPTS, GREEDY, SEEDS)
    for i, row in enumerate(written):
        draws = len(row.token_ids) + (row.finish_reason == "stop")
        expected = per_prompt_token * len(ids[i]) + once + per_draw * draws
        assert row.read_tokens == expected + per_token * (draws - 1)
        (alone,) = baseline.generate([PROMPTS[i]], GREEDY, [SEEDS[i]])
        assert (alone, alone.read_tokens) == (row, row.read_tokens)


def test_dropped_candidates_are_not_read(gpt2: World) -> None:
    """Nor are they counted: with a nucleus of one token, each draw reads one candidate."""
    ids = gpt2.engine.tokenize(PROMPTS)
    sampling = DRAWN.model_copy(update={"top_p": 1e-6})
    for spec, per_prompt_token, per_token in (("sasa:candidates=8", 1, 0), ("rad", 2, 1)):
        for i, row in enumerate(gpt2.load(spec).generate(PROMPTS, sampling, SEEDS)):
            draws = len(row.token_ids) + (row.finish_reason == "stop")
            once = per_prompt_token * len(ids[i]) + per_token * (draws - 1)
            assert row.read_tokens == once + draws


def test_default_order_of_rad_follows_its_normalisation(gpt2: World) -> None:
    for spec, order in (
        ("rad:beta=50", "warp-shift"),
        ("rad:beta=50,normalize=clamp", "shift-warp"),
        ("rad:beta=50,normalize=clamp,order=warp-shift", "warp-shift"),
    ):
        loaded = gpt2.load(spec)
        assert (loaded.name, loaded.config()["order"]) == (spec, order)


def test_labels_of_sasa_choose_the_classifier(gpt2: World) -> None:
    half, any_ = (gpt2.load(spec) for spec in ("sasa", "sasa:labels=any"))
    assert tokens(half, PROMPTS, DRAWN, SEEDS) != tokens(any_, PROMPTS, DRAWN, SEEDS)


def test_max_batch_limits_sequences_of_a_pass(gpt2: World, monkeypatch: pytest.MonkeyPatch) -> None:
    baseline = gpt2.load(STRENGTHS["sasa"])
    monkeypatch.setattr(gpt2.engine, "max_batch", 4 * 8)
    whole = baseline.generate(PROMPTS, DRAWN, SEEDS)
    monkeypatch.setattr(gpt2.engine, "max_batch", 2 * 8)
    with patch.object(Stream, "advance", autospec=True, side_effect=Stream.advance) as advance:
        assert baseline.generate(PROMPTS, DRAWN, SEEDS) == whole
    sizes = [len(ids) for (_, ids), _ in advance.call_args_list]
    assert max(sizes) == 2 * 8  # fewer where top-p leaves fewer candidates


@pytest.mark.parametrize(
    ("name", "long", "message"),
    [
        *((name, "x" * 60, "exceed the context of 64") for name in ("dapt", "pplm", "reversal")),
        ("self-debias", "x" * 57, "with the baseline's"),
    ],
)
def test_baseline_refuses_prompts_that_do_not_fit(
    gpt2: World, name: str, long: str, message: str
) -> None:
    baseline = gpt2.load(STRENGTHS[name])
    (alone,) = baseline.generate(["kind"], GREEDY, [0])
    first, *errors = baseline.generate(["kind", long, ""], GREEDY, [0, 0, 0])
    assert first == alone
    assert all(isinstance(error, CompletionError) for error in errors)
    assert message in str(errors[0])
    assert "no tokens" in str(errors[1])
    assert baseline.generate([], GREEDY, []) == []


@pytest.mark.parametrize("name", sorted(STRENGTHS))
def test_baseline_config_says_what_ran(gpt2: World, name: str) -> None:
    baseline: Any = gpt2.load(STRENGTHS[name])
    config = json.loads(json.dumps(baseline.config()))
    assert config["baseline"] == name
    assert isinstance(config["artefact"], str) == bool(baseline.artefact_kind())
    assert isinstance(baseline, Baseline)
    # The name is a spec of the same baseline, with the strength even where it is the default.
    again = gpt2.load(baseline.name)
    assert (again.name, again.config()) == (baseline.name, baseline.config())


def test_baseline_refuses_other_engines() -> None:
    with pytest.raises(InputError, match="rad: runs only on the engine 'transformers'"):
        load_baseline("rad", object())  # type: ignore[arg-type]


def test_closing_drops_the_auxiliary_models_until_the_next_call(gpt2: World) -> None:
    baseline: Any = gpt2.load(STRENGTHS["dexperts"])
    before = tokens(baseline, PROMPTS, GREEDY, SEEDS)
    expert = baseline.fitted_reader("expert").model
    assert baseline.fitted_reader("expert").model is expert
    baseline.close()
    assert baseline.fitted_reader("expert").model is not expert
    assert tokens(baseline, PROMPTS, GREEDY, SEEDS) == before


@pytest.mark.parametrize("world", with_nightly("gpt2"), indirect=True)
@pytest.mark.parametrize("name", ["contrastive", "dexperts", "gedi", "pplm", "rad", "self-debias"])
def test_lengths_stop_strings_and_penalties_without_strength(world: World, name: str) -> None:
    """As with the model alone: baselines that read the logits again see stop tokens banned, too."""
    (whole, *_) = base(world, PROMPTS, GREEDY, SEEDS)
    with ending_with(world.engine, whole[1]):
        text = world.engine.texts([whole[3:5]])[0]
        baseline, usual = world.load(at(STRENGTHS[name], 0)), base(world, PROMPTS, GREEDY, SEEDS)
        for options in (
            {"min_new_tokens": 4},
            {"repetition_penalty": 1.5},
            {"stop": text, "min_new_tokens": 6},
        ):
            sampling = Sampling(**{**GREEDY.model_dump(), **options})
            expected = base(world, PROMPTS, sampling, SEEDS)
            assert tokens(baseline, PROMPTS, sampling, SEEDS) == expected != usual


@pytest.mark.parametrize("name", sorted(STRENGTHS))
def test_no_baseline_ends_before_the_least_length(gpt2: World, name: str) -> None:
    """Not even one that drops all tokens but the likeliest, which may be stop tokens."""
    baseline = gpt2.load(STRENGTHS[name])
    prompts, seeds = PROMPTS[:2], SEEDS[:2]
    firsts = {row[0] for row in base(gpt2, prompts, GREEDY, seeds)}
    assert len(firsts) == 2
    for sampling in (GREEDY, DRAWN):
        least = sampling.model_copy(update={"min_new_tokens": 6})
        for token in firsts:
            with ending_with(gpt2.engine, token):
                written = tokens(baseline, prompts, least, seeds)
            assert {len(row) for row in written} == {6}
            assert all(token not in row for row in written)
