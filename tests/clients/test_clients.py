"""Clients that exist, unchanged, each told another address and a key."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import KEY

pytestmark = pytest.mark.clients

SAID: list[Any] = [{"role": "user", "content": "Hello there, how are you?"}]


def test_litellm(url: str) -> None:
    litellm = pytest.importorskip("litellm")
    asked = {"model": "openai/tiny", "api_base": f"{url}/v1", "api_key": KEY, "max_tokens": 12}
    whole = litellm.completion(messages=SAID, seed=3, temperature=0, **asked)
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage.completion_tokens > 0
    parts = litellm.completion(messages=SAID, seed=3, temperature=0, stream=True, **asked)
    streamed = "".join(part.choices[0].delta.content or "" for part in parts)
    assert streamed == whole.choices[0].message.content
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(messages=SAID, **{**asked, "api_key": "wrong"})
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(messages=SAID, logprobs=True, **asked)
    long = [{"role": "user", "content": "Hello there. " * 10_000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=long, **asked)


def test_langchain(url: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    model = langchain.ChatOpenAI(
        model="tiny", base_url=f"{url}/v1", api_key=KEY, max_tokens=12, seed=3, temperature=0
    )
    answer = model.invoke("Hello there")
    assert answer.usage_metadata["input_tokens"] > 0
    assert "".join(part.content for part in model.stream("Hello there")) == answer.content
    plain = langchain.OpenAI(model="tiny", base_url=f"{url}/v1", api_key=KEY, max_tokens=12)
    assert isinstance(plain.invoke("Hello there"), str)
    assert len(model.batch(["Hello", "there"])) == 2


def weather(town: str) -> str:
    """The weather in a town."""
    return f"sunny in {town}"


TOWNS = [{"town": "Oslo"}, {"town": "Bergen"}]
LAST = "It is sunny in Oslo and sunny in Bergen."


def test_langchain_with_tools(tools_url: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    from langchain_core.messages import HumanMessage, ToolMessage

    model = langchain.ChatOpenAI(model="tiny", base_url=f"{tools_url}/v1", api_key=KEY)
    bound, said = model.bind_tools([weather]), [HumanMessage("Hello there")]
    answer = bound.invoke(said)
    assert answer.response_metadata["finish_reason"] == "tool_calls"
    first, *parts = bound.stream(said)
    for part in parts:
        first = first + part
    for whole in (answer, first):
        assert [call["name"] for call in whole.tool_calls] == ["weather", "weather"]
        assert [call["args"] for call in whole.tool_calls] == TOWNS
    results = [
        ToolMessage(weather(**call["args"]), tool_call_id=call["id"]) for call in answer.tool_calls
    ]
    assert bound.invoke([*said, answer, *results]).content == LAST
    assert "".join(part.content for part in bound.stream([*said, first, *results])) == LAST


def test_openai_agents_with_tools(tools_url: str) -> None:
    agents = pytest.importorskip("agents")
    openai = pytest.importorskip("openai")
    agents.set_tracing_disabled(True)

    client = openai.AsyncOpenAI(base_url=f"{tools_url}/v1", api_key=KEY)
    model = agents.OpenAIResponsesModel(model="tiny", openai_client=client)
    agent = agents.Agent(name="Guide", model=model, tools=[agents.function_tool(weather)])

    async def run() -> None:
        whole = await agents.Runner.run(agent, "Hello there")
        assert whole.final_output == LAST
        assert whole.context_wrapper.usage.total_tokens > 0
        stream = agents.Runner.run_streamed(agent, "Hello there")
        deltas = []
        async for event in stream.stream_events():
            if event.type == "raw_response_event":
                deltas.append(getattr(event.data, "delta", ""))
        assert stream.final_output == LAST
        assert "".join(deltas).endswith(LAST)

    asyncio.run(run())


def test_google_s_client(url: str) -> None:
    discovery = pytest.importorskip("googleapiclient.discovery")
    client = discovery.build(
        "commentanalyzer",
        "v1alpha1",
        discoveryServiceUrl=f"{url}/$discovery/rest?version=v1alpha1",
        static_discovery=False,
        developerKey=KEY,
    )
    body = {"comment": {"text": "Have a nice day"}, "requestedAttributes": {"TOXICITY": {}}}
    answer = client.comments().analyze(body=body).execute()
    assert 0 <= answer["attributeScores"]["TOXICITY"]["summaryScore"]["value"] < 0.5
    from googleapiclient.errors import HttpError

    body["requestedAttributes"] = {"INSULT": {}}
    with pytest.raises(HttpError) as caught:
        client.comments().analyze(body=body).execute()
    assert caught.value.status_code == 400


def test_lm_eval(url: str, tmp_path: Path) -> None:
    """A generation task with a file of its own: lm-eval's come from the hub."""
    pytest.importorskip("lm_eval")
    (tmp_path / "rows.jsonl").write_text('{"q": "Hello there", "a": "x"}\n' * 3)
    (tmp_path / "task.yaml").write_text(
        "task: tiny_task\ndataset_path: json\noutput_type: generate_until\n"
        f"dataset_kwargs: {{data_files: {{test: {tmp_path}/rows.jsonl}}}}\n"
        'test_split: test\ndoc_to_text: "{{q}}"\ndoc_to_target: "{{a}}"\n'
        "metric_list: [{metric: exact_match}]\n"
        "generation_kwargs: {until: ['\\n'], max_gen_toks: 8}\n"
    )
    kinds = {"local-completions": "completions", "local-chat-completions": "chat/completions"}
    for kind, path in kinds.items():
        arguments = f"model=tiny,base_url={url}/v1/{path},tokenizer_backend=None,num_concurrent=2"
        command = ["run", "--model", kind, "--model_args", arguments, "--tasks", "tiny_task"]
        command += ["--include_path", str(tmp_path)]
        command += ["--apply_chat_template"] if "chat" in kind else []
        own = {"OPENAI_API_KEY": KEY, "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-m", "lm_eval", *command],
            capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **own},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        assert "exact_match" in done.stdout
