from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tide.baselines import dexperts
from tide.baselines.common.fit import Fitted


@pytest.mark.parametrize(
    ("clean", "toxic", "weak"),
    [
        ((150.4, 150.7), (130.0, 100.0), ["expert"]),  # by the expert, by the anti-expert
        ((150.4, 200.0), (103.0, 100.0), ["anti"]),
        ((150.0, 150.0), (100.0, 100.0), ["expert", "anti"]),
        ((113.6, 146.2), (137.4, 110.1), []),
    ],
)
def test_an_expert_that_is_hardly_another_than_the_anti_expert_is_a_doubt(
    clean: tuple[float, float],
    toxic: tuple[float, float],
    weak: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_toxic = {
        False: {"perplexity": clean[0], "perplexity of the other kind": toxic[0]},
        True: {"perplexity": toxic[1], "perplexity of the other kind": clean[1]},
    }

    def learned(task: Any, *, toxic: bool) -> Fitted:
        return Fitted({"a": torch.zeros(1)}, of_toxic[toxic])

    monkeypatch.setattr(dexperts, "write_like", learned)
    task: Any = SimpleNamespace()
    doubts = dexperts.Dexperts.fit(task).doubts
    assert [doubt.split()[1] for doubt in doubts] == weak
    assert all("hardly better than the other model does (perplexity 1" in doubt for doubt in doubts)
