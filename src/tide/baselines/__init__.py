"""Other detoxification systems, for comparison with the searches; each runs on any causal LM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tide.core.errors import InputError, guarded
from tide.plugins.registry import Registry
from tide.plugins.specs import parse_spec

if TYPE_CHECKING:
    from tide.baselines.base import Baseline
    from tide.engines.local.engine import TransformersEngine

REGISTRY = Registry(
    "baseline",
    {
        "adlm": "tide.baselines.adlm:Adlm",
        "contrastive": "tide.baselines.experts:Contrastive",
        "critic-control": "tide.baselines.prefixes:CriticControl",
        "dapt": "tide.baselines.experts:Dapt",
        "destein": "tide.baselines.attention:Destein",
        "dexperts": "tide.baselines.experts:Dexperts",
        "fudge": "tide.baselines.prefixes:Fudge",
        "gedi": "tide.baselines.gedi:Gedi",
        "pplm": "tide.baselines.pplm:Pplm",
        "quark": "tide.baselines.unlearning:Quark",
        "rad": "tide.baselines.prefixes:Rad",
        "rectification": "tide.baselines.unlearning:Rectification",
        "reversal": "tide.baselines.attention:Reversal",
        "safe-decoding": "tide.baselines.experts:SafeDecoding",
        "sasa": "tide.baselines.sasa:Sasa",
        "self-debias": "tide.baselines.self_debias:SelfDebias",
        "unidetox": "tide.baselines.experts:Unidetox",
        "word-filter": "tide.baselines.word_filter:WordFilter",
    },
)


def load_baseline(
    spec: str,
    engine: TransformersEngine,
    *,
    artefacts: str | Path | None = None,
) -> Baseline:
    """Load a baseline.

    Args:
        spec: `NAME[:key=value,...]`, for example `rad:beta=50`.
        engine: Runs the language model.
        artefacts: The folder that `tide fit` wrote, for baselines that learn something.

    Raises:
        InputError: The spec or an artefact cannot be used.
    """
    create, options = read_baseline(spec)
    with guarded(InputError, f"baseline {spec}: cannot be loaded"):
        baseline: Baseline = create(engine, options, artefacts=artefacts)
    return baseline


def read_baseline(spec: str) -> tuple[Any, Any]:
    """Return the class and the options of a baseline. Raises InputError for an invalid spec."""
    name, settings = parse_spec(spec, "baseline")
    create = REGISTRY.load(name)
    if not hasattr(create, "options_class"):
        raise InputError(f"baseline {name}: has no options_class, such as tide.Options")
    return create, create.options_class.of("baseline", name, settings)
