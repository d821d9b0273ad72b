"""A template is a foreign program: its time and memory are limited, and other prompts go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chats import GOOD, save_chat_model
from tests.worlds import ReadingScorer
from tide import Detoxifier
from tide.core import templates
from tide.core.chat import Chat
from tide.core.errors import InputError
from tide.engines.local.engine import TransformersEngine

HOSTILE = {
    "loops in loops": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
        "{% endfor %}{% endfor %}{% endfor %}"
    ),
    "a power": "{{ 10 ** (10 ** 9) }}",
    "a long text": "{{ 'a' * 10 ** 11 }}",
    "a format": "{{ '%99999999999d' % 1 }}",
    "doubling": (
        "{% set n = namespace(s='a') %}{% for i in range(99) %}"
        "{% set n.s = n.s ~ n.s %}{% endfor %}"
    ),
    "macros": "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "much to show": "{{ 'a' * 20000000 }}",
}
SAID = "{% for m in messages %}{{ m.content }}\n{% endfor %}"


@pytest.mark.parametrize(
    "name",
    # Each template takes up to five seconds.
    [pytest.param(name, marks=[pytest.mark.slow] if name == "a power" else []) for name in HOSTILE],
)
def test_a_template_that_computes_for_ever_is_refused(tmp_path: Path, name: str) -> None:
    """Only the chat fails: texts are completed, and so is a later chat of another model."""
    hostile = TransformersEngine(save_chat_model(tmp_path / "a", HOSTILE[name] + SAID))
    good = TransformersEngine(save_chat_model(tmp_path / "b", GOOD["chatml"], bos=True))
    began = time.monotonic()
    with pytest.raises(
        InputError, match=r"messages: the chat template of .* refuses them"
    ) as caught:
        hostile.render(Chat.said("hello"))
    assert time.monotonic() - began < 120  # generous for a busy machine
    assert "\n" not in str(caught.value)
    detoxifier = Detoxifier(hostile, scorer=ReadingScorer(), max_new_tokens=2)
    assert detoxifier("The weather").text
    assert "hello" in good.render(Chat.said("hello"))


def test_the_clock_ends_what_the_processor_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    process = templates._Process()
    monkeypatch.setattr(templates, "_SECONDS", 1.0)
    monkeypatch.setattr(templates, "_CHILD", "import time; time.sleep(99)")
    with pytest.raises(ValueError, match="1 s of wall-clock time"):
        process.ask(b"{}\n")
    assert process._popen is None


def test_a_process_that_was_killed_is_begun_anew(tmp_path: Path) -> None:
    engine = TransformersEngine(save_chat_model(tmp_path, GOOD["chatml"], bos=True))
    text = engine.render(Chat.said("hello"))
    popen = templates._process._popen
    assert popen is not None
    os.kill(popen.pid, signal.SIGKILL)
    popen.wait()
    assert engine.render(Chat.said("hello")) == text
    assert templates._process._popen is not popen


def test_no_module_of_the_working_folder_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working folder may be that of a model."""
    (tmp_path / "json.py").write_text("open('ran', 'w').close()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(templates, "_process", templates._Process())
    engine = TransformersEngine("pocket-chat")
    assert "hello" in engine.render(Chat.said("hello"))
    templates._process.close()
    assert not (tmp_path / "ran").exists()


_FORKED = """
import os, sys, threading, time
from tide.core import templates

class Tokenizer:
    special_tokens_map = {}
    def __init__(self, template): self.template = template
    def get_chat_template(self): return self.template

loop = "{% for i in range(30000) %}{% for j in range(3000) %}{% endfor %}{% endfor %}"
ask = lambda: templates.render_template(Tokenizer(loop), [])
threading.Thread(target=ask, daemon=True).start()
while not templates._process._lock.locked():
    time.sleep(0.01)
if (child := os.fork()) == 0:
    print(templates.render_template(Tokenizer("it works"), []), flush=True)
    os._exit(0)
os.waitpid(child, 0)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_while_a_template_is_rendered_can_render() -> None:
    command = [sys.executable, "-W", "ignore", "-c", _FORKED]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "it works", done.stderr
