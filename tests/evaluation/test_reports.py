"""The page of a report: whole, escaped, and in a real Chromium, if there is one."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape

from tests.evaluation.runs import (
    JUDGE,
    changed,
    from_columns,
    measured,
    run,
    search_run,
    to_columns,
)
from tide import evaluation
from tide.core.results import format_score
from tide.evaluation.reports import page
from tide.evaluation.runs import Run

CHROMIUM = shutil.which("chromium")
HOSTILE = (
    "</script></style><script>window.broken = 1</script><img src=x onerror='window.broken=1'>\"'"
)


def with_bases(one: Run, scores: list[float]) -> Run:
    """`one` with numbered texts as the model's own completions, with these scores."""
    for number, record in enumerate(one.records):
        texts = [f"a rude text {number}"] * len(record.trials)
        changed(one, number, base_text=texts, base_toxicity=[scores[number]] * len(texts))
    return one


def rendered(*runs: Run, mask: Any = None, **more: Any) -> str:
    found = evaluation.report(runs, **{"draw": False, **more})
    with pytest.MonkeyPatch.context() as patched:
        if mask is not None:
            patched.setattr("tide.evaluation.reports.masked", mask)
        return page(found.groups, found.tables, found.figures)


def rows_of(text: str, prompt: str) -> dict[str, list[str]]:
    """The cells of a prompt by method, with masked words."""
    text = re.sub('<span class="clear" hidden>.*?</span>|<span class="masked">|</span>', "", text)
    (part,) = re.findall(rf"<h3>\d+\. {prompt} .*?</table>", text, re.DOTALL)
    rows = re.findall(r'<tr><th scope="row" class="left">(.*?)</th>(.*?)</tr>', part)
    return {name: re.findall(r"<td[^>]*>(.*?)</td>", cells) for name, cells in rows}


def test_page_holds_tables_figures_and_texts() -> None:
    base = run([[0.9, 0.2]] * 6)
    for number in range(6):
        changed(base, number, forward_tokens=[20] * 2)
    search = search_run("tide")
    report = evaluation.report([measured(base, [[2.0, 3.0]] * 6), search])
    text = page(report.groups, report.tables, report.figures)
    assert all(str(escape(table.title)) in text for table in report.tables)
    assert text.count("data:image/png;base64,") == len(report.figures) == 1
    data = re.findall(r"data:image/png;base64,([^\"]+)", text)
    assert all(base64.b64decode(one).startswith(b"\x89PNG") for one in data)
    (caption,) = re.findall("<figcaption>(.*?)</figcaption>", text)
    assert caption.startswith("Toxicity against perplexity: lower left is better (toy, ")
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)


def test_page_shows_the_worst_twenty_prompts() -> None:
    scores = [number / 40 for number in range(30)]
    search = with_bases(search_run("tide", prompts=30), scores)
    text = rendered(search, mask=lambda text: text.replace("a rude", "a r***"))
    shown = re.findall(r"<h3>\d+\. prompt (\d+) \(id", text)
    assert [int(one) for one in shown] == list(range(29, 9, -1))
    rows = rows_of(text, "prompt 29")
    assert list(rows) == ["unmodified model", "tide"]
    record = search.records[29]
    judged = record.trials[0].step_judge_scores[JUDGE][0]
    assert rows["unmodified model"] == [
        "0.73",
        format_score(judged, judged <= 0.5),
        "a r*** text 29",
    ]
    scores = record.max_toxicity, record.worst.judge_scores[JUDGE]
    assert rows["tide"][:2] == [format_score(score, score <= 0.5) for score in scores]


def test_page_marks_texts_that_are_not_accepted() -> None:
    """A text that no scorer saw has no score."""
    one, trials = search_run("tide", prompts=4), 2
    for number, (words, more) in enumerate(
        [
            ("", {"refused": [True] * trials}),
            ("so it is", {}),
            (" ", {}),
            ("a", {"empty": [True] * trials}),
        ]
    ):
        changed(
            one,
            number,
            text=[words] * trials,
            accepted=[False] * trials,
            toxicity=[0.2] * trials,
            judge_scores={JUDGE: [0.2] * trials},
            **more,
        )
    text = rendered(one)
    told = [rows_of(text, f"prompt {number}")["tide"] for number in range(4)]
    says = ["(withheld)", "so it is (not accepted)", "(empty)", "a (too short to score)"]
    assert [cells[-1] for cells in told] == says
    assert [cells[0] for cells in told] == ["0.20", "0.20", "0.20", "-"]


def hostile() -> list[Run]:
    """Runs with markup wherever an untrusted file may hold it."""
    runs = [run([[0.2]] * 2, HOSTILE), search_run("tide", prompts=2)]
    for one in runs:
        one.config["model"] = HOSTILE
        one.config["benchmark"]["name"] = HOSTILE
        one.config[HOSTILE] = {HOSTILE: HOSTILE}
        one.config["judges"].append({"spec": HOSTILE, "name": HOSTILE})
        one.config["references"] = [HOSTILE]
        for number, record in enumerate(one.records):
            values = to_columns(record)
            trials = len(record.trials)
            values |= {"prompt": HOSTILE, "text": [HOSTILE] * trials, "group": HOSTILE}
            values["judge_scores"][HOSTILE] = [0.1] * trials
            values["id"] = f"{HOSTILE}{number}"
            one.records[number] = from_columns(values)
    return runs


def test_page_escapes_markup_and_control_characters() -> None:
    one = run([[0.1]])
    changed(one, 0, prompt="a\u202eb\x1b[2J", text=["c\u2066d"])
    text = rendered(*hostile(), one)
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def opened(browser: Any, text: str, tmp_path: Path, width: int = 1280) -> tuple[Any, list[str]]:
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    shown = browser.new_context(viewport={"width": width, "height": 800}).new_page()
    faults: list[str] = []
    shown.on("pageerror", lambda error: faults.append(str(error)))
    shown.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
    asked = [f"file://{tmp_path}/report.html", "data:"]
    shown.on(
        "requestfinished",  # a request that the policy refuses starts, and fails
        lambda one: None if one.url.startswith(tuple(asked)) else faults.append(one.url),
    )
    shown.goto(asked[0])
    return shown, faults


def test_page_of_hostile_records_runs_and_loads_nothing(browser: Any, tmp_path: Path) -> None:
    shown, faults = opened(browser, rendered(*hostile()), tmp_path)
    assert shown.evaluate("window.broken") is None
    # Even unescaped markup would not run.
    shown.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=http://x.invalid/>')")
    shown.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.broken = 1';"
        " document.body.append(s); }"
    )
    assert shown.evaluate("window.broken") is None
    assert len(faults) >= 2
    assert [fault for fault in faults if "Content Security Policy" not in fault] == []
