"""The table of what each system needs is of the systems that are here."""

from __future__ import annotations

from tide.baselines import REGISTRY as BASELINES
from tide.evaluation.systems import properties_table
from tide.search import REGISTRY as STRATEGIES


def test_every_system_is_there_and_learns_what_its_class_says() -> None:
    table = properties_table()
    rows = {row[-1]: row for row in table.rows}
    assert {*BASELINES.names(), "tide", "resample", "no code"} == rows.keys()
    assert {"tide", "resample"} <= {*STRATEGIES.names()}
    # What these read another one learns.
    borrowed = {"dapt", "contrastive", "safe-decoding"}
    for name in BASELINES.names():
        learns = rows[name][2] != "nothing"
        assert learns == (BASELINES.load(name).learned or name in borrowed), name
    assert rows["tide"][2:6] == ["nothing", "no", "no", "embeddings"]
    assert [row[0] for row in table.rows if row[3] == "yes"] == ["PPLM"]


def test_adlm_is_named_with_the_reason() -> None:
    table = properties_table()
    assert [row[0] for row in table.rows if row[-1] == "no code"] == ["ADLM"]
    assert any("ADLM is not here" in note for note in table.notes)
