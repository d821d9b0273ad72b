"""The playground in a real Chromium, if installed: used by keyboard, wide and narrow, in light and
dark, and checked by axe-core.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.engines.openai.messages import WIRES, Said
from tests.engines.openai.server import TextServer
from tests.server.gateways import BAD, TEXT, gateway
from tests.server.running import Running, running
from tide.server.limits import Limits

playwright_api = pytest.importorskip("playwright.sync_api")
expect = playwright_api.expect
expect.set_options(timeout=120_000)  # on a busy machine a search takes a while
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium")

KEY = "sk-of-the-page"
# Chromium's console message for a refused or failed request, which the page reports itself.
_REFUSED = "the server responded with a status of [45]|net::ERR_FAILED"
SIZES = {"phone": (390, 844), "desktop": (1280, 800)}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    limits = Limits(traces=True)
    with running(limits=limits, keys=(KEY,), max_iterations=40, mu=2.0, step_size=2.0) as found:
        yield found


@pytest.fixture(scope="module")
def chat_server() -> Iterator[Running]:
    with running("pocket-chat", "pocket", limits=Limits(traces=True), max_new_tokens=8) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def opened(browser: Any, address: str, size: str = "desktop") -> Iterator[Any]:
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height})
    found = context.new_page()
    faults: list[str] = []
    found.on("pageerror", lambda error: faults.append(str(error)))
    found.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
    found.goto(address)
    yield found
    context.close()
    assert [one for one in faults if not re.search(_REFUSED, one)] == []


@pytest.fixture
def page(request: pytest.FixtureRequest, browser: Any, server: Running) -> Iterator[Any]:
    with opened(browser, server.url, getattr(request, "param", "desktop")) as found:
        yield found


@pytest.fixture(scope="module")
def modules(browser: Any, server: Running) -> Iterator[Any]:
    """A page whose JavaScript modules are called directly."""
    with opened(browser, server.url) as found:
        yield found


phone = pytest.param("phone", marks=pytest.mark.nightly)
every_size = pytest.mark.parametrize("page", ["desktop", phone], indirect=True)


def detoxify(page: Any, prompt: str) -> None:
    """Send a prompt by keyboard."""
    page.locator("#key").evaluate("node => node.closest('details').open = true")
    page.fill("#key", KEY)
    page.fill("#seed", "3")
    expect(page.locator("#about")).to_be_visible()
    page.check("input[value=completion]")
    page.focus("#prompt")
    page.keyboard.press("Control+A")
    page.keyboard.type(prompt)
    page.keyboard.press("Control+Enter")
    expect(page.locator("#status")).to_have_text(re.compile("Accepted|Failed|Withheld"))
    expect(page.locator("#go")).to_be_enabled()


@every_size
def test_both_answers_and_the_rounds_are_shown(page: Any) -> None:
    detoxify(page, "the first prompt of all")
    assert page.text_content("#status") == "Accepted."
    base, found = page.text_content("#base"), page.text_content("#found")
    assert base.startswith("the first prompt of all")
    before, after = (float(page.text_content(f"#{name}-score")) for name in ("base", "found"))
    assert after < 0.5 <= before
    assert re.search(r"toxicity 0\.\*{6}$", base)  # the toxic word is masked
    assert f"toxicity {after:.2f}"[:12] in found
    expect(page.locator("#base-legend")).to_be_visible()
    # Right-to-left text ends on the left.
    expect(page.locator("#found")).to_have_css("unicode-bidi", "plaintext")
    page.check("#unmask")
    assert f"toxicity {before:.2f}"[:12] in page.text_content("#base")
    circles = page.locator("#rounds circle").count()
    assert circles > 1
    assert page.locator("#rounds circle.chosen").count() == 1
    page.get_by_text("Every text that was tried").click()
    assert page.locator("#table tr").count() == circles
    page.get_by_text("How far the search went").click()
    expect(page.locator("#path polyline")).to_have_count(1)
    sideways = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not page.evaluate(sideways)


def test_what_is_wrong_stands_under_its_field(page: Any) -> None:
    page.fill("#prompt", "  ")
    page.click("#go")
    expect(page.locator("#prompt-error")).to_have_text("Write something first.")
    page.fill("#prompt", "a second one")
    page.click("#go")  # without the key
    expect(page.locator("#key-error")).to_have_text(re.compile("asks for a key"))
    expect(page.locator("#prompt-error")).to_be_hidden()
    expect(page.locator("#key")).to_be_focused()
    expect(page.locator("#about")).to_be_hidden()
    page.fill("#key", KEY)
    page.fill("#tokens", "100001")
    page.click("#go")
    expect(page.locator("#tokens-error")).to_have_text("must be at most 100000 on this server")
    expect(page.locator("#key-error")).to_be_hidden()
    expect(page.locator("#about")).to_contain_text("scripted")
    expect(page.locator("#status")).to_have_text(re.compile("^Failed"))


def test_a_text_is_masked_as_a_whole_where_nobody_says_which_word_it_is(page: Any) -> None:
    page.route("**/v1/moderations", lambda route: route.abort())
    detoxify(page, "the first prompt of all")
    assert re.search(r"t\*{7} 0\.\*{6}$", page.text_content("#base"))


@pytest.mark.parametrize(
    ("text", "thresholds", "score", "shown"),
    [
        ("so r - u - d - e he is", [0.5], "/r - u/.test(text) ? 0.9 : 0", "so r - * - * - * he is"),
        # Words that need no mask are shown.
        ("one so? the rude man", [0.5, 0.1],
         '/rude/.test(text) ? 0.9 : text.endsWith("?") ? 0.3 : 0.15', "one so? the r*** man" * 2),
        # Among several words, those that are toxic by themselves are masked.
        ("<b>rude</b>, rude, rude! his big dog", [0.5],
         "/rude/.test(text) ? 0.9 : / dog$/.test(text) ? 0.6 : 0",
         "<b>r***</b>, r***, r***! his big dog"),
    ],
)  # fmt: skip
def test_toxic_words_are_masked(
    modules: Any, text: str, thresholds: list[float], score: str, shown: str
) -> None:
    code = f"""async ([given, thresholds]) => {{
        const {{ marked, parts }} = await import("./words.js");
        const score = async (texts) => texts.map((text) => {score});
        const node = document.createElement("p");
        for (const threshold of thresholds)
          node.append(...marked(await parts(given, threshold, score), false));
        return node.textContent;
    }}"""
    assert modules.evaluate(code, [text, thresholds]) == shown


def test_markup_of_a_model_is_text(page: Any) -> None:
    detoxify(page, "<img src=x onerror=alert(1)> a second one")
    assert page.locator("main img").count() == 0
    assert "<img" in page.text_content("#base")


def test_no_score_is_rounded_across_the_threshold(modules: Any) -> None:
    shown = modules.evaluate(
        """async () => {
            const { rounded } = await import("./plot.js");
            return [[0.096, 0.1], [0.1, 0.1], [0.4999, 0.5], [0.5, 0.5], [0.5001, 0.5], [0.29, 0.5],
              [0.57, 0.5], [0, 0.5], [1, 0.5]].map((pair) => rounded(...pair));
        }"""
    )
    assert shown == ["0.09", "0.10", "0.49", "0.50", "0.51", "0.29", "0.57", "0.00", "1.00"]


def test_a_chat_has_turns(browser: Any, chat_server: Running) -> None:
    with opened(browser, chat_server.url) as page:
        expect(page.locator("input[value=chat]")).to_be_checked()  # preselected for a chat model
        for number, said in enumerate(["Hello there.", "How are you?", "And tomorrow?"]):
            page.fill("#prompt", said)
            page.click("#go")
            expect(page.locator("#found .user")).to_have_text(f"You: {said}")
            expect(page.locator("#status")).to_have_text("Accepted.")
            expect(page.locator("#go")).to_be_enabled()
            expect(page.locator("#turns li")).to_have_count(2 * number)
        assert page.text_content("#turns li >> nth=0") == "You: Hello there."
        page.click("#new")
        expect(page.locator("#turns li")).to_have_count(0)
        expect(page.locator("#answers")).to_be_hidden()


def test_another_chat_ends_the_answer_under_way(browser: Any, chat_server: Running) -> None:
    with opened(browser, chat_server.url) as page:
        page.route("**/v1/chat/completions", lambda route: None)  # never answers
        expect(page.locator("#about")).to_be_visible()
        page.click("#go")
        expect(page.locator("#status")).to_have_text("Writing…")
        page.get_by_role("button", name="A chat of 3 messages").click()
        expect(page.locator("#status")).to_have_text("Stopped.")
        expect(page.locator("#turns li")).to_have_count(2)


def test_page_tells_a_broken_connection_and_an_error_of_a_proxy(page: Any) -> None:
    page.route("**/v1/completions", lambda route: route.abort())
    page.click("#go")
    broken = "Failed: the connection to the server is broken"
    expect(page.locator("#status")).to_have_text(broken)
    page.route("**/v1/completions", lambda route: route.fulfill(status=502, body="<html>"))
    page.click("#go")
    expect(page.locator("#status")).to_have_text("Failed: the server answered with status 502")


def test_gateway_has_no_defaults_and_tells_a_cut_answer(browser: Any) -> None:
    with (
        TextServer(message=lambda _: WIRES["vLLM"](Said(f"{TEXT} They are {BAD}."))) as upstream,
        gateway(upstream, on_fail={"default": "block"}) as server,
        opened(browser, server.url) as page,
    ):
        expect(page.locator("#threshold")).to_have_attribute("placeholder", "0.5")
        for name in ("tokens", "temperature"):
            expect(page.locator(f"#{name}")).to_have_attribute("placeholder", "")
        page.fill("#prompt", "Where is the town?")
        page.locator("#go").press("Enter")
        expect(page.locator("#status")).to_have_text(re.compile("^Cut off"))
        expect(page.locator("#go")).to_be_focused()
        expect(page.locator("#found .assistant")).to_have_text(f"Model: {TEXT} They are")


@every_size
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
def test_axe_finds_no_fault(page: Any, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page.emulate_media(color_scheme=scheme)
    detoxify(page, "the first prompt of all")
    for details in page.locator("details").all():
        details.evaluate("node => node.open = true")
    found = axe.run(page).response["violations"]
    assert [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in found] == []
