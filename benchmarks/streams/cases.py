"""The cases, each with the threads in which it went wrong somewhere.

A case returns whether it holds (None: it cannot be seen from here) and a note.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import httpx

from benchmarks.streams.client import Answer, read
from benchmarks.streams.server import (
    BAD,
    BRITTLE,
    DONE,
    ROLE,
    USAGE,
    Cut,
    Heard,
    ScriptedServer,
    Status,
    Step,
    Usage,
    choice_event,
    event,
)

Finding = tuple[bool | None, str]
# guard: about texts that fail. wire: about all streams. exact: about proxies that change nothing.
Kind = Literal["guard", "wire", "exact"]
GITHUB = "https://github.com/"
PATIENCE = 60.0
PAUSE = 0.02  # seconds between two words of the server
LEAVING = 2.0  # seconds in which a server hears that its reader has left
WORDS = [" The", " weather", " is", " fine", " today.", " We", " walk", " along", " the", " river."]
_STORY = """The market opens at nine. A baker sells warm bread, and his daughter sells apples from
the garden. Two old friends drink tea under a tree. Later the bus brings visitors from the coast.
They look at the church, buy a map and eat soup in the small hall. In the evening a band plays songs
on the square, and children dance until the lamps are lit."""
LONG = [f" {word}" for word in _STORY.split()]
TOOL = {"type": "function", "function": {"name": "ask", "parameters": {"type": "object"}}}
END: list[Step] = [Usage(), DONE]


@dataclass(frozen=True)
class Case:
    """threads: where this went wrong, as paths on GitHub."""

    name: str
    kind: Kind
    title: str
    threads: tuple[str, ...]
    check: Callable[[Kit], Awaitable[Finding]]


CASES: list[Case] = []


def case(kind: Kind, title: str, *threads: str) -> Callable[[Any], Any]:
    """Register a function as a case."""

    def register(check: Callable[[Kit], Awaitable[Finding]]) -> Any:
        CASES.append(Case(check.__name__, kind, title, threads, check))
        return check

    return register


@dataclass
class Kit:
    """The address under test, and the scripted server behind it.

    pid: the process at the address, for its processor time. scores: whether it asks our scorer.
    """

    url: str
    server: ScriptedServer
    model: str = "scripted"
    key: str = "none"
    pid: int | None = None
    scores: bool = False
    http: httpx.AsyncClient = field(default_factory=lambda: httpx.AsyncClient(timeout=PATIENCE))

    async def ask(
        self, *scripts: list[Step], enough: int = 0, patience: float = PATIENCE, **body: Any
    ) -> Answer:
        """Ask for a stream that the server answers by `scripts`.

        enough: leave after so many pieces of text. patience: leave after so many seconds.
        """
        answer = Answer(next(self.server.numbers))
        self.server.scripts[answer.number] = list(scripts)
        message = {"role": "user", "content": f"What is new in town? ({answer.number})"}
        body = {"model": self.model, "messages": [message], "stream": True, **body}
        headers = {"authorization": f"Bearer {self.key}"}
        address = f"{self.url.removesuffix('/v1')}/v1/chat/completions"
        try:
            with anyio.fail_after(patience):
                asking = self.http.stream("POST", address, json=body, headers=headers)
                async with asking as response:
                    await read(answer, response, enough)
        except TimeoutError:
            answer.error = "no end in time"
        except httpx.HTTPError as error:
            answer.error = f"no answer ({type(error).__name__})"
        return answer

    def heard(self, answer: Answer) -> list[Heard]:
        return self.server.heard.get(answer.number, [])


def said(*pieces: str, reason: str = "stop", pause: float = PAUSE) -> list[Step]:
    """Return the steps of a server that says `pieces`."""
    steps: list[Step] = [ROLE]
    for piece in pieces:
        steps += [choice_event({"content": piece}), pause]
    return [*steps, choice_event({}, reason), *END]


def called(arguments: list[str], number: int = 0) -> list[Step]:
    """Return the steps of a server that calls a tool, whose arguments come in pieces."""
    call = {"index": number, "id": f"call_{number}", "type": "function"}
    begun = choice_event({"tool_calls": [{**call, "function": {"name": "ask", "arguments": ""}}]})
    steps: list[Step] = [begun]
    for piece in arguments:
        delta = {"tool_calls": [{"index": number, "function": {"arguments": piece}}]}
        steps += [choice_event(delta), 0.001]
    return steps


def is_whole(answer: Answer, text: str, reason: str = "stop") -> Finding:
    """Return whether an answer is `text` to its letter, and ends as an answer should."""
    if answer.error:
        return False, answer.error
    if answer.text() != text:
        return False, f"{len(answer.text())} of {len(text)} characters are right or there"
    if answer.reason() != reason:
        return False, f"finish_reason {answer.reason()}"
    return answer.dones == 1, "" if answer.dones == 1 else f"{answer.dones} times [DONE]"


def is_kept_back(answer: Answer) -> Finding:
    """Return whether nothing of the bad word was sent, and the client was told of an end."""
    shown = answer.shown().casefold()
    if BAD in shown:
        return False, "the word was sent"
    if not answer.is_told():
        if answer.reason() is None:
            return False, "the stream ends without a reason"
        return True, f"another answer, {answer.reason()}"
    return True, answer.error or "content_filter"


# What fails is not sent


@case("guard", "a failing word inside of a stream is not sent",
      "api7/aisix/issues/204", "api7/aisix/issues/466", "cisco-ai-defense/defenseclaw/issues/99",
      "majiayu000/litellm-rs/issues/1127")  # fmt: skip
async def bad_word(kit: Kit) -> Finding:
    return is_kept_back(await kit.ask(said(*WORDS, f" you {BAD}", *WORDS)))


@case("guard", "nor one that is split over chunks, nor its first half",
      "BerriAI/litellm/issues/41611", "mastra-ai/mastra/issues/23783")  # fmt: skip
async def bad_word_split(kit: Kit) -> Finding:
    for parts in ((f" {BAD[:2]}", BAD[2:]), (" ", *BAD)):
        answer = await kit.ask(said(*WORDS, " you", *parts, *WORDS))
        if f"you {BAD[:2]}" in answer.text():
            return False, "the first half was sent"
        held = is_kept_back(answer)
        if not held[0]:
            return held
    return held


@case("guard", "nor the last word of an answer",
      "BerriAI/litellm/pull/31503", "BerriAI/litellm/pull/20385")  # fmt: skip
async def bad_word_last(kit: Kit) -> Finding:
    held = is_kept_back(await kit.ask(said(*WORDS, f" {BAD}")))
    last = choice_event({"content": f" {BAD}"}, "stop")  # as vLLM's last event
    at_once: list[Step] = [ROLE, *(choice_event({"content": word}) for word in WORDS), last, *END]
    return is_kept_back(await kit.ask(at_once)) if held[0] else held


@case("guard", "nor in the second of two choices",
      "BerriAI/litellm/pull/36208", "openai/openai-guardrails-js/pull/104")  # fmt: skip
async def bad_choice(kit: Kit) -> Finding:
    def spoken(index: int, *words: str) -> list[Step]:
        steps: list[Step] = [choice_event({"role": "assistant", "content": ""}, index=index)]
        steps += [choice_event({"content": word}, index=index) for word in words]
        return [*steps, choice_event({}, "stop", index=index)]

    bad = (*WORDS, f" {BAD}")
    both = [*spoken(0, *WORDS), *spoken(1, *bad), *END]
    # A gateway may ask for one choice at a time; the second of these requests gets the bad one.
    first, second = [*spoken(0, *WORDS), *END], [*spoken(0, *bad), *END]
    answer = await kit.ask(both, n=2)
    asked = kit.heard(answer)
    if asked and asked[0].body.get("n", 1) == 1:
        answer = await kit.ask(first, second, n=2)
    return (BAD not in answer.shown(), answer.error or f"{answer.reason(0)}, {answer.reason(1)}")


@case("guard", "nor in the arguments of a tool, split over chunks",
      "BerriAI/litellm/pull/39888", "BerriAI/litellm/pull/35999")  # fmt: skip
async def bad_arguments(kit: Kit) -> Finding:
    pieces = ['{"what": "you', f" {BAD[:2]}", f'{BAD[2:]}"}}']
    steps: list[Step] = [ROLE, *called(pieces), choice_event({}, "tool_calls"), *END]
    return is_kept_back(await kit.ask(steps, tools=[TOOL]))


@case("guard", "nor with escapes in the arguments of a tool", "api7/aisix/pull/1110")
async def bad_escapes(kit: Kit) -> Finding:
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in BAD)
    pieces = ['{"what": "', escaped, '"}']
    steps: list[Step] = [ROLE, *called(pieces), choice_event({}, "tool_calls"), *END]
    answer = await kit.ask(steps, tools=[TOOL])
    if escaped in answer.shown():
        return False, "the word was sent"
    return is_kept_back(answer)


@case("guard", "nor in the reasoning", "api7/aisix/issues/1106")
async def bad_reasoning(kit: Kit) -> Finding:
    thought = [choice_event({"reasoning_content": part}) for part in (" so", " what,", f" {BAD}")]
    return is_kept_back(await kit.ask([ROLE, *thought, *said(*WORDS)[1:]]))


@case("guard", "nor in logprobs", "majiayu000/litellm-rs/pull/1305")
async def bad_logprobs(kit: Kit) -> Finding:
    def likely(word: str) -> bytes:
        other = {"token": f" {BAD}", "logprob": -2.0, "bytes": None}
        token = {"token": word, "logprob": -0.1, "bytes": None, "top_logprobs": [other]}
        return choice_event({"content": word}, logprobs={"content": [token]})

    steps: list[Step] = [ROLE, *map(likely, WORDS), choice_event({}, "stop"), *END]
    return is_kept_back(await kit.ask(steps, logprobs=True, top_logprobs=1))


@case("guard", "nor in fields beside the text", "api7/aisix/pull/815")
async def bad_fields(kit: Kit) -> Finding:
    for name in ("refusal", "annotation", "reasoning_details"):
        beside = choice_event({"content": " fine", name: f"you {BAD}"})
        held = is_kept_back(await kit.ask([ROLE, beside, *said(*WORDS)[1:]]))
        if not held[0]:
            return False, f"{name}: {held[1]}"
    return held


@case("guard", "nor in an event of several lines", "api7/aisix/pull/1110")
async def bad_lines(kit: Kit) -> Finding:
    lines = json.dumps(json.loads(choice_event({"content": f" {BAD}"})[6:]), indent=1).splitlines()
    bad = "".join(f"data: {line}\n" for line in lines).encode() + b"\n"
    return is_kept_back(await kit.ask([*said(*WORDS)[:-3], bad, *said(*WORDS)[1:]]))


@case("guard", "a stopped stream says so: content_filter or an error, not `stop`",
      "BerriAI/litellm/pull/38722", "api7/aisix/pull/222")  # fmt: skip
async def told(kit: Kit) -> Finding:
    answer = await kit.ask(said(*WORDS, f" {BAD}", *WORDS))
    rest = "".join(WORDS).strip()
    is_short = rest.startswith(answer.text().strip())
    if is_short and not answer.is_told():
        return False, f"it ends with {answer.reason()} in the middle"
    return BAD not in answer.shown(), answer.error or str(answer.reason())


@case("guard", "no text leaves before it was scored",
      "BerriAI/litellm/issues/35257", "api7/aisix/pull/512")  # fmt: skip
async def scored_first(kit: Kit) -> Finding:
    if not kit.scores:
        return None, "not our scorer"
    answer = await kit.ask(said(f" Letter{secrets.token_hex(4)}:", *LONG[:20]))
    if not answer.text():
        return False, f"no text: {answer.error}"
    for at, text in answer.growing():
        if not was_scored(kit, text, at):
            return False, f"unscored after {len(text)} characters"
    return True, ""


@case("guard", "no tool call leaves before it was scored", "NVIDIA-NeMo/Guardrails/pull/2024")
async def call_scored_first(kit: Kit) -> Finding:
    if not kit.scores:
        return None, "not our scorer"
    words = f"letter{secrets.token_hex(4)} {''.join(WORDS)}"
    steps: list[Step] = [ROLE, *called(['{"what": "', words, '"}'])]
    answer = await kit.ask([*steps, choice_event({}, "tool_calls"), *END], tools=[TOOL])
    at = next((at for at, choice in answer.choices() if "tool_calls" in choice["delta"]), None)
    if at is None:
        return False, f"no call: {answer.error}"
    return was_scored(kit, words, at), ""


def was_scored(kit: Kit, text: str, at: float) -> bool:
    """Return whether a text, as a part of any text, had passed at a time."""
    plain = " ".join(text.split())
    return any(
        score.passed and score.ended <= at and plain in " ".join(score.text.split())
        for score in kit.server.scored
    )


@case("guard", "if the scorer fails, no unscored text is sent", "api7/aisix/pull/1117")
async def scorer_fails(kit: Kit) -> Finding:
    if not kit.scores:
        return None, "not our scorer"
    answer = await kit.ask(said(*WORDS, f" {BRITTLE}", *WORDS))
    return BRITTLE not in answer.shown() and answer.is_told(), answer.error or "no error"


# What passes arrives


@case("wire", "words that are split over chunks arrive as they are",
      "NVIDIA-NeMo/Guardrails/issues/1197")  # fmt: skip
async def split_words(kit: Kit) -> Finding:
    pieces = [
        " It is a won",
        "der",
        "ful",
        " mor",
        "ning",
        ",",
        " and",
        "\n\n",
        "- sun",
        "ny",
        " .",
    ]
    return is_whole(await kit.ask(said(*pieces)), "".join(pieces))


@case("wire", "no chunk is erased in a long answer",
      "BerriAI/litellm/pull/20027", "BerriAI/litellm/pull/20385")  # fmt: skip
async def nothing_erased(kit: Kit) -> Finding:
    return is_whole(await kit.ask(said(*LONG, pause=0.002)), "".join(LONG))


@case("wire", "the first chunk has the role, and no other",
      "maximhq/bifrost/issues/6523", "tensorzero/tensorzero/issues/1265")  # fmt: skip
async def role(kit: Kit) -> Finding:
    answer = await kit.ask(said(*WORDS))
    roles = [delta.get("role") for delta in answer.deltas()]
    is_first = bool(roles) and roles[0] == "assistant"
    others = [value for value in roles[1:] if value not in (None, "assistant")]
    return is_first and not others, "" if is_first else f"first {roles[:1]}, error {answer.error}"


@case("wire", "finish_reason is the server's", "zhayujie/CowAgent/pull/3074")
async def finish_reason(kit: Kit) -> Finding:
    for reason in ("stop", "length"):
        whole = is_whole(await kit.ask(said(*WORDS, reason=reason)), "".join(WORDS), reason)
        if not whole[0]:
            return whole
    return whole


@case("wire", "tool calls arrive: two, in pieces, and more than 5 KB",
      "NVIDIA/OpenShell/issues/829", "NVIDIA-NeMo/Guardrails/issues/2352",
      "BerriAI/litellm/pull/39888")  # fmt: skip
async def tool_calls(kit: Kit) -> Finding:
    long = [f"line {number} of a letter; " for number in range(300)]
    pieces = [['{"what": "', *long, '"}'], ['{"what"', ': "Oslo"}']]
    steps: list[Step] = [ROLE, *called(pieces[0]), *called(pieces[1], number=1)]
    answer = await kit.ask([*steps, choice_event({}, "tool_calls"), *END], tools=[TOOL])
    for number, parts in enumerate(pieces):
        call = answer.calls().get(number, {})
        if call != {"name": "ask", "arguments": "".join(parts)}:
            return False, answer.error or f"call {number} is another"
    return answer.reason() == "tool_calls", f"finish_reason {answer.reason()}"


@case("wire", "text before a tool call stays", "BerriAI/litellm/pull/32915")
async def text_and_call(kit: Kit) -> Finding:
    steps: list[Step] = [*said(*WORDS)[:-3], *called(['{"what": "Oslo"}'])]
    answer = await kit.ask([*steps, choice_event({}, "tool_calls"), *END], tools=[TOOL])
    is_right = answer.text() == "".join(WORDS) and answer.calls().keys() == {0}
    return is_right, answer.error or f"finish_reason {answer.reason()}"


@case("wire", "reasoning does not become text",
      "BerriAI/litellm/issues/10848", "vllm-project/vllm/pull/45636")  # fmt: skip
async def reasoning(kit: Kit) -> Finding:
    thought = [choice_event({"reasoning_content": part}) for part in (" Let", " me", " see.")]
    answer = await kit.ask([ROLE, *thought, *said(*WORDS)[1:]])
    sent = any(
        delta.get("reasoning_content") or delta.get("reasoning") for delta in answer.deltas()
    )
    whole = is_whole(answer, "".join(WORDS))
    return whole[0], whole[1] or ("reasoning sent" if sent else "reasoning withheld")


@case("wire", "stop strings go on to the server",
      "vllm-project/vllm/issues/3574", "vllm-project/vllm/issues/2577",
      "mzau/mlx-knife/issues/68")  # fmt: skip
async def stop_strings(kit: Kit) -> Finding:
    answer = await kit.ask(said(*WORDS), stop=["END OF", "###"])
    asked = kit.heard(answer)
    stops = asked[0].body.get("stop") if asked else None
    return stops == ["END OF", "###"], answer.error or f"stop: {stops}"


@case("wire", "usage is the server's, in a chunk without choices, only if asked for",
      "guardrails-ai/guardrails/issues/1236", "BerriAI/litellm/issues/8450")  # fmt: skip
async def usage(kit: Kit) -> Finding:
    answer = await kit.ask(said(*WORDS), stream_options={"include_usage": True})
    counts = [event["usage"] for _, event in answer.events if event.get("usage")]
    if len(counts) != 1 or {name: counts[0].get(name) for name in USAGE} != USAGE:
        return False, answer.error or f"usage {counts}"
    if answer.events[-1][1].get("choices"):
        return False, "its chunk has choices"
    unasked = await kit.ask(said(*WORDS))
    return not any(event.get("usage") for _, event in unasked.events), "not asked for: none"


@case("wire", "[DONE] is last, and comes once", "BerriAI/litellm/issues/33404")
async def done(kit: Kit) -> Finding:
    answer = await kit.ask(said(*WORDS))
    is_last = answer.content.rstrip().endswith(b"data: [DONE]")
    return is_last and answer.dones == 1 and not answer.error, answer.error


@case("wire", "a server without [DONE] is understood", "router-for-me/CLIProxyAPI/issues/5028")
async def no_done(kit: Kit) -> Finding:
    answer = await kit.ask(said(*WORDS)[:-1])
    if answer.error or answer.text() != "".join(WORDS):
        return False, answer.error or "text is missing"
    return answer.reason() == "stop", f"finish_reason {answer.reason()}"


@case("wire", "a connection that breaks is no end: an error, or no finish_reason",
      "BerriAI/litellm/issues/33404", "preloop/preloop/issues/117")  # fmt: skip
async def cut(kit: Kit) -> Finding:
    return is_cut(await kit.ask([*said(*WORDS)[:-3], Cut()]))


@case("wire", "nor is a stream that just ends", "brightwave-inc/tidebreak/issues/1124")
async def quiet_end(kit: Kit) -> Finding:
    return is_cut(await kit.ask(said(*WORDS)[:-3]))


@case("wire", "nor one that breaks within a tool call", "NousResearch/hermes-agent/pull/100160")
async def cut_call(kit: Kit) -> Finding:
    steps: list[Step] = [ROLE, *called(['{"what": "Os']), Cut()]
    return is_cut(await kit.ask(steps, tools=[TOOL]))


@case("wire", "an error event of the server arrives as one",
      "MAXeaglet/commandcode-proxy/issues/38", "BerriAI/litellm/issues/33404")  # fmt: skip
async def error_event(kit: Kit) -> Finding:
    failed = event({"error": {"message": "out of memory", "type": "server_error", "code": 500}})
    return is_cut(await kit.ask([*said(*WORDS)[:-3], failed, DONE]))


def is_cut(answer: Answer) -> Finding:
    """Return whether a client sees that an answer was cut off."""
    if answer.reason() in ("stop", "length", "tool_calls"):
        return False, f"finish_reason {answer.reason()} was made up"
    if not answer.error and answer.dones:
        return False, "[DONE] without an error"
    return True, answer.error or "no finish_reason and no [DONE]"


@case("wire", "a refusal keeps its status and Retry-After",
      "azrtydxb/Fastllm-proxy/issues/28", "doublewordai/control-layer/pull/1800")  # fmt: skip
async def refused(kit: Kit) -> Finding:
    answer = await kit.ask([Status(429, {"retry-after": "7"})])
    requests = len(kit.heard(answer))
    note = f"{answer.status}, retry-after {answer.headers.get('retry-after')}, {requests} requests"
    return answer.status == 429 and answer.headers.get("retry-after") == "7", note


@case("wire", "a client that leaves ends the server's work",
      "BerriAI/litellm/pull/30245", "Nayjest/lm-proxy/issues/88")  # fmt: skip
async def client_leaves(kit: Kit) -> Finding:
    answer = await kit.ask(said(*LONG, pause=0.1), enough=1)
    asked = kit.heard(answer)
    if asked and asked[-1].wrote[-1][1] == DONE:
        return None, "no text before the server's end"
    return await leaves(kit, answer)


@case("wire", "also one that leaves before the first text",
      "BerriAI/litellm/pull/31499", "BerriAI/litellm/issues/13774")  # fmt: skip
async def client_leaves_early(kit: Kit) -> Finding:
    return await leaves(kit, await kit.ask([ROLE, 20.0, *said(*WORDS)], patience=2.0))


async def leaves(kit: Kit, answer: Answer) -> Finding:
    """Return whether the server soon hears that its reader has left."""
    began = time.monotonic()
    while time.monotonic() - began < LEAVING:
        asked = kit.heard(answer)
        if asked and all(heard.left is not None for heard in asked):
            return True, f"after {max(0.0, asked[-1].left - began):.2f} s"  # type: ignore[operator]
        await asyncio.sleep(0.02)
    return (False, f"not within {LEAVING:g} s") if asked else (None, "the server was not asked")


@case("wire", "the first text is sent while the server still writes",
      "langchain4j/langchain4j/pull/2571", "BerriAI/litellm/pull/31503")  # fmt: skip
async def first_text(kit: Kit) -> Finding:
    pause, number = 0.05, 60
    answer = await kit.ask(said(*LONG[:number], pause=pause))
    wrote, grown = kit.heard(answer)[0].wrote, next(answer.growing(), None)
    if grown is None:
        return False, answer.error or "no text"
    delay = grown[0] - wrote[1][0]
    note = f"after {1000 * delay:.0f} ms; the server writes for {1000 * pause * number:.0f}"
    return grown[0] < wrote[-1][0], note


@case("wire", "two choices stay apart",
      "openai/openai-agents-python/pull/3314", "BerriAI/litellm/pull/36208")  # fmt: skip
async def two_choices(kit: Kit) -> Finding:
    texts = (WORDS, [" Rain", " and", " wind", " again."])
    both: list[Step] = []
    for index in (0, 1):
        both.append(choice_event({"role": "assistant", "content": ""}, index=index))
    for words in itertools.zip_longest(*texts):
        both += [
            choice_event({"content": word}, index=index)
            for index, word in enumerate(words)
            if word is not None
        ]
    both += [choice_event({}, "stop", index=index) for index in (0, 1)]
    answer = await kit.ask([*both, *END], n=2)
    asked = kit.heard(answer)
    if asked and asked[0].body.get("n", 1) == 1:  # one choice at a time
        answer = await kit.ask(*(said(*words) for words in texts), n=2)
    if answer.status == 400:
        return True, "n is refused"
    written = sorted("".join(words) for words in texts)
    return sorted(map(answer.text, (0, 1))) == written, answer.error


@case("wire", "chunks without choices, text or content are no fault",
      "AbanteAI/archive-old-cli-mentat/issues/429", "langfuse/langfuse/issues/2833",
      "BerriAI/litellm/pull/19784")  # fmt: skip
async def empty_chunks(kit: Kit) -> Finding:
    filtered = event({"id": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]})
    nothing = [choice_event({}), choice_event({"content": ""}), choice_event({"content": None})]
    return is_whole(
        await kit.ask([filtered, ROLE, *nothing, *said(*WORDS)[1:-3], *nothing, *said()[1:]]),
        "".join(WORDS),
    )


@case("wire", "characters and events may be split over segments",
      "api7/aisix/issues/111", "musistudio/claude-code-router/pull/1672")  # fmt: skip
async def segments(kit: Kit) -> Finding:
    text = " Grüße aus 東京 und 北京 🙂."
    whole = b"".join([ROLE, choice_event({"content": text}), choice_event({}, "stop")])
    parts: list[Step] = []
    for byte in whole:
        parts += [bytes([byte]), 0.0005]
    return is_whole(await kit.ask([*parts, *END]), text)


@case("wire", "comments and CRLF of the server are no text",
      "mnfst/llm-gateway/issues/2053", "james-6-23/codex2api/issues/696",
      "theopenco/llmgateway/pull/2334")  # fmt: skip
async def comments(kit: Kit) -> Finding:
    steps: list[Step] = []
    for step in said(*WORDS):
        crlf = step.replace(b"\n", b"\r\n") if isinstance(step, bytes) else step
        steps += [b": PROCESSING\r\n\r\n", crlf]
    return is_whole(await kit.ask(steps), "".join(WORDS))


@case("exact", "the bytes are the server's", "BerriAI/litellm/issues/25780")
async def same_bytes(kit: Kit) -> Finding:
    steps = said(*WORDS, f" {BAD}", *WORDS)
    answer = await kit.ask(steps, logprobs=True, stream_options={"include_usage": True})
    wrote = b"".join(data for _, data in kit.heard(answer)[0].wrote)
    return answer.content == wrote, answer.error


STREAMS = 8


@case("wire", "processor time a word",
      "BerriAI/litellm/issues/13505", "BerriAI/litellm/pull/21501")  # fmt: skip
async def processor(kit: Kit) -> Finding:
    if kit.pid is None:
        return None, "--pid is not given"
    words = LONG * 3
    before = seconds_of(kit.pid)
    asked = (kit.ask(said(*words, pause=0.005)) for _ in range(STREAMS))
    answers = await asyncio.gather(*asked)
    spent = seconds_of(kit.pid) - before
    is_sent = all(answer.text() == "".join(words) for answer in answers)
    return is_sent, f"{1000 * spent / STREAMS / len(words):.2f} ms"


def seconds_of(pid: int) -> float:
    """Return the processor time of a process and its children."""
    import psutil  # noqa: PLC0415  (no other case needs it)

    process = psutil.Process(pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(time.user + time.system for time in times)
