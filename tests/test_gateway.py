"""The light gateway: the packages of `pip install '.[gateway]'` are enough, and they are small.

Most tests imitate its environment in a subprocess that cannot import anything else. A nightly test
installs it, and runs the command of the Dockerfile.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
import venv
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.command import SEVERAL
from tests.engines.openai.server import TextServer
from tests.server.processes import serving
from tide.core.errors import LOCAL

ROOT = Path(__file__).parents[1]
MIB = 1 << 20
# Blocks the modules that the first argument names.
BLOCKED = """
import sys
class Finder:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
blocked = set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, Finder)
"""
TIDE = f"{BLOCKED}from tide.cli import program; program()"
STARTING = [
    ("--help",),
    *((name, "--help") for name in ("serve", "doctor")),
    ("methods",),
    ("scorers",),
]
LACKING = {
    ("run", "hello"): "torch",
    ("serve",): "torch",
    ("score", "hello", "--scorer", "hf:mine"): "torch",
    ("eval", str(ROOT / "examples/everyday.txt"), "--model", "mine"): "torch",
    ("serve", "--engine", "openai", "--strategy", "tide"): "strategy tide: .*backtrack .*; torch",
}


@cache
def blocked() -> str:
    """The importable modules that no package of the gateway provides."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["gateway"]]
    wanted, new = {"tide-detox"}, [Requirement(line) for line in lines]
    while new:
        requirement = new.pop()
        name = canonicalize_name(requirement.name)
        if name in wanted or (
            requirement.marker and not requirement.marker.evaluate({"extra": ""})
        ):
            continue
        wanted.add(name)
        try:
            new += map(Requirement, requires(name) or ())
        except PackageNotFoundError:  # required only for another version of Python
            continue
    names = packages_distributions()
    mine = {name for name, by in names.items() if wanted & set(map(canonicalize_name, by))}
    return ",".join(sorted(names.keys() - mine - {"tide"}))


def run(code: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, blocked(), *arguments]
    return subprocess.run(
        command, input=stdin, check=False, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("dull\nidiot\n")
    return path


def test_the_imitated_environment_is_the_gateways() -> None:
    assert set(LOCAL) <= set(blocked().split(","))
    assert not {"numpy", "fastapi", "mmh3", "regex"} & set(blocked().split(","))


def test_commands_start_or_say_what_to_install() -> None:
    lines = [*LACKING, *STARTING]
    done = run(BLOCKED + SEVERAL, stdin=json.dumps(lines))
    assert (done.returncode, done.stderr) == (0, "")
    for line, (code, out, err) in zip(lines, json.loads(done.stdout), strict=True):
        if line in LACKING:
            says = rf"error: {LACKING[line]} is not installed; .*: pip install -e '\.\[local\]'"
            assert code == 1
            last = err.strip().splitlines()[-1]
            if last.startswith("{"):  # the log of `serve` has begun
                last = json.loads(last)["message"]
            assert re.fullmatch(says, last), line
            assert "Traceback" not in err
        else:
            assert (code, err, bool(out)) == (0, "", True), line


def test_bundled_scorers_score(words: Path) -> None:
    scorers = ["pocket", "sentence", f"lexicon:{words}", "cache:confirm:pocket,exchange"]
    options = [f"--scorer={scorer}" for scorer in scorers]
    done = run(TIDE, "score", "You are an idiot.", "--output", str(words.parent / "out"), *options)
    assert done.returncode == 0, done.stderr
    (row,) = map(json.loads, (words.parent / "out").read_text().splitlines())
    assert len(row["scores"]) == len(scorers)
    assert min(row["scores"].values()) > 0.5


def test_threshold_is_chosen_from_a_monitor_log(tmp_path: Path) -> None:
    log = tmp_path / "monitor.jsonl"
    log.write_text('{"policy": "default", "accepted_above": 0.05}\n' * 300)
    done = run(TIDE, "threshold", str(log))
    assert (done.returncode, done.stdout) == (0, "toxicity_threshold: 0.06\nalter_at_most: 0.01\n")


def gateway(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-c", TIDE, blocked(), "serve", "--port", "0", *arguments)


def test_gateway_repairs_another_server(words: Path) -> None:
    options = ("--engine", "openai", "--scorer", f"lexicon:{words}")
    with (
        TextServer() as upstream,
        serving(*gateway(*options, "--base-url", upstream.url)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        bodies = [{"prompt": f"The weather {n} is", "temperature": 0.7} for n in range(12)]
        answers = [client.post("/v1/completions", json=body).json() for body in bodies]
        choices = [answer["choices"][0] for answer in answers]
        assert all(choice["tide"]["accepted"] for choice in choices)
        assert not any("dull" in choice["text"].lower() for choice in choices)
        assert sum(choice["tide"]["rounds"] > 1 for choice in choices) > 2  # repaired
        body = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}
        assert "[DONE]" in client.post("/v1/chat/completions", json=body).text
        assert client.get("/ready").status_code == 200
        assert "text/html" in client.get("/").headers["content-type"]
        assert 'tide_completions_total{outcome="accepted"}' in client.get("/metrics").text


def dockerfile() -> dict[str, str]:
    """The instructions of the gateway's stage; of repeated ones, the last."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text("utf-8"))
    for name, value in re.findall(r'^ARG (\w+)="?(.*?)"?$', text, re.MULTILINE):
        text = text.replace(f"${{{name}}}", value)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: rest for name, _, rest in (line.partition(" ") for line in lines)}


def test_dockerfile_sets_a_user_and_no_secret() -> None:
    instructions = dockerfile()
    assert instructions["USER"] == "10001"
    assert "KEY" not in instructions["ENV"]
    copied = re.findall(r"^COPY (.*) \S+$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    allowed = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    for source in " ".join(copied).split():
        assert (ROOT / source).exists()
        assert f"!{source}" in allowed


@pytest.mark.nightly
def test_dockerfile_installs_a_small_server(tmp_path: Path) -> None:
    """Needs a package index, like the Dockerfile."""
    instructions = dockerfile()
    venv.create(tmp_path / "env", with_pip=True)
    programs = tmp_path / "env/bin"
    packages = next((tmp_path / "env/lib").glob("python*/site-packages"))
    before = size(packages)
    install, *_ = instructions["RUN"].split(" && ")
    command = shlex.split(install)
    assert command[:2] == ["pip", "install"]
    done = subprocess.run([programs / "python", "-m", *command], cwd=ROOT, check=False)
    if done.returncode:
        pytest.skip("the packages cannot be installed here")
    assert size(packages) - before <= 330 * MIB
    names = {path.name for path in packages.iterdir()}
    assert not names & set(LOCAL)
    assert not (packages / "tide/pocket/model").exists()
    environment = {
        **dict(part.split("=") for part in instructions["ENV"].split()),
        "TIDE_SERVE_HOST": "127.0.0.1",  # other hosts require a key
        "PYTHONPATH": "",
    }
    entry = [str(programs / "tide"), *json.loads(instructions["ENTRYPOINT"])[1:]]
    with (
        TextServer() as upstream,
        serving(*entry, "--port", "0", "--base-url", upstream.url, **environment) as server,
    ):
        body = {"prompt": "The weather is", "temperature": 0.7}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        assert answer["choices"][0]["text"]
        _, _, check = instructions["HEALTHCHECK"].partition("CMD ")
        probe = [part.replace("127.0.0.1:8000", server.url[7:]) for part in json.loads(check)]
        subprocess.run([programs / "python", *probe[1:]], check=True)


def size(folder: Path) -> int:
    """Disk usage in bytes."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))
