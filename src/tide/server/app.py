"""The routes of the server, and the sending of responses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response

from tide import __version__
from tide.core.chat import Chat
from tide.core.errors import TideError
from tide.core.http import ANSWERS
from tide.core.settings import Settings
from tide.engines.openai.engine import OpenAIEngine
from tide.server.answers import Refused, ReplyShape, Shape, limits_in
from tide.server.gate import PLAYGROUND, VISIT, Gate, Visit
from tide.server.generation import Serving
from tide.server.guardrail import GuardrailRequest, guard
from tide.server.messages import MessageShape, MessagesRequest
from tide.server.monitor import Monitor
from tide.server.proxy import Proxy, monitored_route
from tide.server.responses import ResponseShape, ResponsesRequest
from tide.server.schemas import ChatRequest, CompletionRequest, Generation
from tide.server.scoring import AnalyzeRequest, ModerationRequest, ScoringApi, discovery
from tide.server.telemetry import MeasuredScorer, instrument

if TYPE_CHECKING:
    import httpx
    from starlette.types import Receive, Scope, Send

    from tide.engines.base import Engine
    from tide.server.policies import Policies, ServedPolicy

_PLAYGROUND_FOLDER = Path(__file__).with_name("playground")
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src data:; "
    "frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_NO_STORE = {"cache-control": "no-store"}
# Settings that a request may change; /version shows their defaults.
_SHOWN = ("max_new_tokens", "temperature", "toxicity_threshold")


def create_app(
    policies: Policies, name: str | None, monitor: Monitor | None = None, tracing: Any = None
) -> Gate:
    """Create the ASGI application of a server. All requests share the engine of `policies`.

    name: the name of the model that clients see; None: the engine's, which a gateway learns from
    its server. tracing: OpenTelemetry's provider of spans.
    """
    engine = policies.engine
    monitor = monitor or Monitor(policies)
    serving = Serving(policies, name, monitor)
    proxy = Proxy(engine, serving, monitor) if isinstance(engine, OpenAIEngine) else None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await monitor.finish()

    app = FastAPI(
        title="TIDE", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    for kind in (Refused, TideError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _failed)
    # Handlers of `Exception` pass the error on after the answer, so traces would quote its text.
    app.add_middleware(ExceptionMiddleware, handlers={Exception: _failed})
    if tracing is not None:
        instrument(app, tracing)
    app.include_router(_generation_routes(serving, proxy))
    app.include_router(_model_routes(serving, proxy))
    app.include_router(_scoring_routes())
    app.include_router(_state_routes(policies, serving))
    for path, file in PLAYGROUND.items():
        app.get(path, include_in_schema=False)(_page(_PLAYGROUND_FOLDER / file))
    return Gate(app, policies, monitor)


def _generation_routes(serving: Serving, proxy: Proxy | None) -> APIRouter:
    """Return the routes that give out text of the model, in the formats of several APIs."""
    routes = APIRouter() if proxy is None else APIRouter(route_class=monitored_route(proxy))

    async def generate(request: Generation, shape: Shape, scope: Scope) -> Response:
        visit: Visit = scope[VISIT]
        answers: list[httpx.Headers] = []
        ANSWERS.set(answers)
        if request.stream:
            events = serving.stream(request, visit, shape)
            visit.ending = shape.failed
            stream = EventStream(await anext(events), events, shape)
            stream.headers.update(limits_in(answers))
            return stream
        answer, tide = await serving.whole(request, visit, shape)
        shown = {
            f"x-tide-{key.replace('_', '-')}": _written(value)
            for key, value in tide.items()
            if not isinstance(value, list)
        }
        return JSONResponse(answer, headers=shown | _NO_STORE | limits_in(answers))

    def reply_shape(request: Generation, *, chat: bool) -> ReplyShape:
        counts = request.stream_options.include_usage
        return ReplyShape(serving.model_of(request), chat=chat, counts=counts)

    @routes.post("/v1/completions")
    async def completions(request: CompletionRequest, http: Request) -> Response:
        return await generate(request, reply_shape(request, chat=False), http.scope)

    @routes.post("/v1/chat/completions")
    async def chat(request: ChatRequest, http: Request) -> Response:
        return await generate(request, reply_shape(request, chat=True), http.scope)

    @routes.post("/v1/responses")
    async def responses(request: ResponsesRequest, http: Request) -> Response:
        chat = request.for_chat()
        return await generate(chat, ResponseShape(request, serving.model_of(chat)), http.scope)

    @routes.post("/v1/messages")
    async def messages(request: MessagesRequest, http: Request) -> Response:
        chat = request.for_chat()
        return await generate(chat, MessageShape(serving.model_of(chat)), http.scope)

    return routes


def _model_routes(serving: Serving, proxy: Proxy | None) -> APIRouter:
    """Return the routes about models; those of a gateway are answered by its server."""
    routes = APIRouter()
    if proxy is not None:
        for path in ("/v1/models", "/v1/models/{model_name:path}"):
            routes.get(path)(proxy.unscored)
        counts = ("/v1/messages/count_tokens", "/v1/responses/input_tokens")
        for path in ("/v1/embeddings", *counts):
            routes.post(path)(proxy.unscored)
        return routes
    model = {"id": serving.name, "object": "model", "created": 0, "owned_by": "tide"}

    @routes.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @routes.get("/v1/models/{model_name:path}")
    async def one_model(model_name: str) -> dict[str, Any]:
        serving.check_model(model_name)
        return model

    return routes


def _scoring_routes() -> APIRouter:
    """Return the routes that emulate scoring services."""
    routes = APIRouter()

    def scoring(http: Request) -> ScoringApi:
        """Return the scoring API of the default policy of the request's API key."""
        policy: ServedPolicy = http.scope[VISIT].policies[0]
        return policy.scoring

    @routes.post("/v1/moderations")
    async def moderations(request: ModerationRequest, http: Request) -> dict[str, Any]:
        return await scoring(http).moderate(request)

    @routes.post("/v1alpha1/comments:analyze")
    async def analyze(request: AnalyzeRequest, http: Request) -> dict[str, Any]:
        return await scoring(http).analyze(request)

    @routes.get("/$discovery/rest")
    async def describe(request: Request) -> dict[str, Any]:
        return discovery(str(request.base_url))

    @routes.post("/beta/litellm_basic_guardrail_api")
    async def guardrail(request: GuardrailRequest, http: Request) -> dict[str, Any]:
        visit: Visit = http.scope[VISIT]
        return await guard(visit.policies[0], request, visit.number)

    return routes


def _state_routes(policies: Policies, serving: Serving) -> APIRouter:
    """Return the routes about the server itself."""
    routes, engine = APIRouter(), policies.engine

    @routes.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @routes.get("/ready")
    async def ready() -> Response:
        usable = policies.table.usable
        scorers = {policy.measured for policy in usable}  # policies may share a scorer
        monitors = any(policy.mode == "monitor" for policy in usable)
        is_reached = engine.available
        answers = is_reached and (monitors or await asyncio.to_thread(any_answers, scorers))
        # Clients without a key may ask, so the addresses of services are left out.
        names = [re.sub("@[^,()]*", "", scorer.name) for scorer in scorers if not scorer.works]
        down = sorted(f"scorer {name}" for name in names)
        if not is_reached:
            down.insert(0, "engine")
        status = "ok" if answers else "unavailable"
        state = {"status": status, "down": down, "engine": engine.capability_notes}
        return JSONResponse(state, 200 if answers else 503)

    def any_answers(scorers: set[MeasuredScorer]) -> bool:
        """Return False if the scorers, which all policies need, are known to be down.

        A scorer that is down is called only if no other works: the call may take longer than a
        probe waits.
        """
        in_order = sorted(scorers, key=lambda scorer: not scorer.works)
        return any(scorer.check() for scorer in in_order)

    @routes.get("/metrics")
    async def figures() -> Response:
        policies.metrics.engine_up.set(engine.available)
        text = policies.metrics.text()
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    chats = _has_chats(engine)

    @routes.get("/version")
    async def version(http: Request) -> dict[str, Any]:
        policy: ServedPolicy = http.scope[VISIT].policies[0]
        usual = policy.detox.settings
        of_chat = usual.for_chat(engine.chat_sampling)
        return {
            "version": __version__,
            "model": serving.name,
            "policy": policy.name,
            "mode": policy.mode,
            "scorer": policy.scorer.name,
            "preset": policy.preset,
            "chats": chats,
            "traces": policies.limits.traces,
            **shown(usual),
            "chat": shown(of_chat),
        }

    def shown(settings: Settings) -> dict[str, Any]:
        """Return the defaults of requests; None for those of the server behind a gateway."""
        values = {name: getattr(settings, name) for name in _SHOWN}
        if "server_fields" in engine.capabilities:
            unset = {"max_new_tokens", "temperature"} - settings.model_fields_set
            values |= dict.fromkeys(unset)
        return values

    return routes


class EventStream(Response):
    """Sends `first` and `rest` as server-sent events, and an error as the end of its `shape`."""

    media_type = "text/event-stream"
    background = None

    def __init__(self, first: str, rest: AsyncGenerator[str, None], shape: Shape) -> None:
        self.init_headers({**_NO_STORE, "x-accel-buffering": "no"})
        self._first, self._rest, self._shape = first, rest, shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(text: str, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        async with aclosing(self._rest) as rest:
            await send(start)
            await write(self._first)
            last = self._shape.done
            try:
                async for text in rest:
                    await write(text)
            except Exception as error:
                scope[VISIT].error = error
                last = self._shape.failed(Refused.of(error))
            await write(last, more=False)


async def _failed(request: Request, error: Exception) -> Response:
    """Return the response to a failed request, in the format of the API that was called."""
    path = request.url.path
    if isinstance(error, RequestValidationError):
        return _invalid(error).response(path)
    if isinstance(error, HTTPException):
        message = error.detail
        if error.status_code in (404, 405):
            message = f"{message}: {request.method} {path}"
        if isinstance(error.__cause__, ValueError):  # such as a number of 5,000 digits
            message = f"the body cannot be read: {str(error.__cause__).partition(';')[0]}"
        response = Refused(error.status_code, message).response(path)
        response.headers.update(error.headers or {})  # `Allow` of a 405
        return response
    request.scope[VISIT].error = error
    return Refused.of(error).response(path)


def _invalid(error: RequestValidationError) -> Refused:
    """Return the first validation error of a request, with the name of the field in the request."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return Refused(400, f"the body is not JSON: {first.get('ctx', {}).get('error', '')}")
    if isinstance(error.body, bytes | str):
        return Refused(400, "expected a JSON object (Content-Type: application/json)")
    names: list[Any] = []
    within: Any = error.body
    for name in first["loc"][1:]:  # `loc` also contains names of types and validators
        if (isinstance(within, dict) and name in within) or (
            isinstance(within, list) and isinstance(name, int) and name < len(within)
        ):
            names, within = [*names, name], within[name]
    inner = first.get("ctx", {}).get("param")  # our validators name a field below `loc` here
    missing = first["loc"][-1] if first["type"] == "missing" else None
    if inner is None and missing not in names[-1:]:  # unless it was sent as null
        inner = missing
    param = ".".join(map(str, [*names, *([inner] if inner else [])])) or None
    return Refused(400, f"{param or 'body'}: {first['msg']}", param=param)


def _has_chats(engine: Engine) -> bool:
    try:
        engine.render(Chat.of([{"role": "user", "content": "Hello"}]))
    except TideError:
        return False
    return True


def _written(value: Any) -> str:
    if isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else f"{value:.4g}"


def _page(path: Path) -> Callable[[], Any]:
    async def answer() -> Response:
        return FileResponse(path, headers=_PAGE_HEADERS)

    return answer
