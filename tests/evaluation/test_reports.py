"""The page of a report is whole and escaped."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest
from markupsafe import escape

from tests.evaluation.runs import JUDGE, changed, measured, run, search_run
from tide import evaluation
from tide.core.results import format_score
from tide.evaluation.reports import page
from tide.evaluation.runs import Run

HOSTILE = (
    "</script></style><script>window.broken = 1</script><img src=x onerror='window.broken=1'>\"'"
)


def rendered(*runs: Run, mask: Any = None) -> str:
    report = evaluation.report(runs, draw=False)
    with pytest.MonkeyPatch.context() as patched:
        if mask is not None:
            patched.setattr("tide.evaluation.reports.masked", mask)
        return page(report.groups, report.tables, report.figures)


def rows_of(text: str, prompt: str) -> dict[str, list[str]]:
    """The cells of a prompt by method, with masked words."""
    text = re.sub('<span class="clear" hidden>.*?</span>|<span class="masked">|</span>', "", text)
    (part,) = re.findall(rf"<h3>\d+\. {prompt} .*?</table>", text, re.DOTALL)
    rows = re.findall(r'<tr><th scope="row" class="left">(.*?)</th>(.*?)</tr>', part)
    return {name: re.findall(r"<td[^>]*>(.*?)</td>", cells) for name, cells in rows}


def test_page_holds_tables_figures_and_texts() -> None:
    base = run([[0.9, 0.2]] * 6, model="elsewhere/pocket", weights="1")
    for number in range(6):
        changed(base, number, forward_tokens=20)
    search = search_run("tide")
    search.config["weights"] = "1"
    report = evaluation.report([measured(base, [[2.0, 3.0]] * 6), search])
    text = page(report.groups, report.tables, report.figures)
    assert all(str(escape(table.title)) in text for table in report.tables)
    assert text.count("data:image/png;base64,") == len(report.figures) == 1
    data = re.findall(r"data:image/png;base64,([^\"]+)", text)
    assert all(base64.b64decode(image).startswith(b"\x89PNG") for image in data)
    assert "<figcaption>Toxicity against perplexity: lower left is better (toy, " in text
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)


def test_tables_of_long_scorers_have_short_names_of_their_own() -> None:
    runs = [search_run("tide"), search_run("backtrack")]
    for number, search in enumerate(runs):
        search.config.update(scorer={"name": f"hf:{'folder/' * 50}{number}@1"}, references=[])
    made = evaluation.report(runs, draw=False).tables
    assert len({table.name for table in made}) == len(made)
    assert max(len(table.name) for table in made) <= 100
    assert any("text: distinct words" in str(table.title) for table in made)  # no perplexity


def test_page_shows_the_worst_twenty_prompts() -> None:
    search = search_run("tide", prompts=30)
    for number in range(30):
        changed(search, number, base_text=f"a rude text {number}", base_toxicity=number / 40)
    text = rendered(search, mask=lambda text: text.replace("a rude", "a r***"))
    shown = re.findall(r"<h3>\d+\. prompt (\d+) \(id", text)
    assert [int(number) for number in shown] == list(range(29, 9, -1))
    rows = rows_of(text, "prompt 29")
    assert list(rows) == ["unmodified model", "tide"]
    record = search.records[29]
    judged = record.trials[0].base_judge_scores[JUDGE]
    expected = ["0.73", format_score(judged, judged <= 0.5), "a r*** text 29"]
    assert rows["unmodified model"] == expected
    scores = record.worst.toxicity, record.worst.judge_scores[JUDGE]
    assert rows["tide"][:2] == [format_score(score, score <= 0.5) for score in scores]


def test_page_marks_texts_that_are_not_accepted() -> None:
    """A text that no scorer saw has no score."""
    search = search_run("tide", prompts=4)
    common = {"accepted": False, "toxicity": 0.2, "judge_scores": {JUDGE: 0.2}}
    changed(search, 0, text="", refused=True, **common)
    changed(search, 1, text="so it is", **common)
    changed(search, 2, text=" ", **common)
    changed(search, 3, text="a", empty=True, **common)
    changed(search, 0, base_text="so", base_partial=True)
    shown = rendered(search)
    assert rows_of(shown, "prompt 0")["unmodified model"][-1] == "so (cut off by the repair)"
    rows = [rows_of(shown, f"prompt {number}")["tide"] for number in range(4)]
    notes = ["(withheld)", "so it is (not accepted)", "(empty)", "a (too short to score)"]
    assert [cells[-1] for cells in rows] == notes
    assert [cells[0] for cells in rows] == ["0.20", "0.20", "0.20", "-"]


def test_page_escapes_markup_and_control_characters() -> None:
    runs = [run([[0.2]] * 2, HOSTILE), search_run("tide", prompts=2)]
    for hostile in runs:
        hostile.config["model"] = hostile.config["benchmark"]["name"] = HOSTILE
        hostile.config["judges"].append({"spec": HOSTILE, "name": HOSTILE})
        hostile.config["references"] = [HOSTILE]
        for number in range(2):
            texts = dict.fromkeys(("prompt", "text", "group"), HOSTILE)
            scores = {JUDGE: 0.2, HOSTILE: 0.1}
            changed(hostile, number, id=f"{HOSTILE}{number}", judge_scores=scores, **texts)
    controls = changed(run([[0.1]]), 0, prompt="a\u202eb\x1b[2J", text="c\u2066d")
    text = rendered(*runs, controls)
    assert not set("\u202e\x1b\u2066") & set(text)
    assert r"a\u202eb\x1b[2J" in text
    assert text.count("<script>") == text.count("</script>") == 1
    assert text.count("</style>") == 1
    assert "<img" not in text
    assert text.count(str(escape("<img src=x"))) > 10


def test_page_policy_allows_its_own_script_only() -> None:
    text = rendered(run([[0.1]]))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.replace("&#39;", "'").split(";"))
    assert rules.pop("img-src") == "data:"
    for kind in ("style-src", "script-src"):
        assert re.fullmatch(r"'sha256-[\w+/]{43}='", rules.pop(kind))
    assert rules == dict.fromkeys(("default-src", "base-uri", "form-action"), "'none'")
