"""The page at `/` in a real Chromium, if there is one: used by keyboard, wide and narrow, by day
and by night, and looked over by axe-core.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.running import Running, running
from tide.server.limits import Limits

playwright_api = pytest.importorskip("playwright.sync_api")
expect = playwright_api.expect
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium")

KEY = "sk-of-the-page"
SIZES = {"phone": (360, 740), "desktop": (1280, 800)}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    limits = Limits(traces=True)
    with running(limits=limits, keys=(KEY,), max_iterations=40, mu=2.0, step_size=2.0) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(params=SIZES)
def page(request: pytest.FixtureRequest, browser: Any, server: Running) -> Iterator[Any]:
    width, height = SIZES[request.param]
    context = browser.new_context(viewport={"width": width, "height": height})
    found = context.new_page()
    faults: list[str] = []
    found.on("pageerror", lambda error: faults.append(str(error)))
    found.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
    found.goto(server.url)
    yield found
    context.close()
    assert faults == []


def detoxify(page: Any, prompt: str) -> None:
    """All by keyboard."""
    page.locator("#key").evaluate("node => node.closest('details').open = true")
    page.fill("#key", KEY)
    page.fill("#seed", "3")
    page.focus("#prompt")
    page.keyboard.press("Control+A")
    page.keyboard.type(prompt)
    page.keyboard.press("Control+Enter")
    expect(page.locator("#status")).to_have_text(re.compile("Accepted|Failed|Withheld"))


def test_both_answers_and_the_rounds_are_shown(page: Any) -> None:
    detoxify(page, "the first prompt of all")
    assert page.text_content("#status") == "Accepted."
    base, found = page.text_content("#base"), page.text_content("#found")
    assert base.startswith("the first prompt of all")
    before, after = (float(page.text_content(f"#{name}-score")) for name in ("base", "found"))
    assert after < 0.5 <= before
    assert re.search(r"t\*{7} 0\.\d\*{5}$", base)  # masked
    assert f"toxicity {after:.2f}"[:12] in found
    page.check("#unmask")
    assert f"toxicity {before:.2f}"[:12] in page.text_content("#base")
    circles = page.locator("#rounds circle").count()
    assert circles > 1
    assert page.locator("#rounds circle.chosen").count() == 1
    page.get_by_text("Every evaluated text").click()
    assert page.locator("#table tr").count() == circles
    page.get_by_text("How far the search went").click()
    assert page.locator("#path polyline").count() == 1
    sideways = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not page.evaluate(sideways)


def test_what_fails_is_said(page: Any, server: Running) -> None:
    body = '{"error": {"message": "no"}}'
    page.evaluate(f"window.fetch = async () => new Response('{body}', {{status: 401}})")
    detoxify(page, "a second one")
    assert page.text_content("#status") == "Failed: no"


def test_markup_of_a_model_is_text(page: Any) -> None:
    detoxify(page, "<img src=x onerror=alert(1)> a second one")
    assert page.locator("main img").count() == 0
    assert "<img" in page.text_content("#base")


def test_the_tab_key_reaches_everything_in_order(page: Any) -> None:
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    page.focus("input[name=kind]")
    reached = []
    for _ in range(10):
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        page.keyboard.press("Tab")
    assert reached == [
        *("INPUT", "prompt", "SUMMARY", "tokens", "temperature", "threshold", "seed", "key"),
        *("go", "unmask"),
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault(page: Any, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page.emulate_media(color_scheme=scheme)
    detoxify(page, "the first prompt of all")
    for details in page.locator("details").all():
        details.evaluate("node => node.open = true")
    found = axe.run(page).response["violations"]
    assert [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in found] == []
