"""The routes: what comes in is read, handed to MLX's thread, and answered as it comes out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.errors import PipelineError, RequestError, SamplingError, TextError
from pipeline.runtime.generate import Request as Continuation
from pipeline.runtime.sampling import SEEDS, Sampling
from pipeline.serving import replies, requests
from pipeline.serving.streams import Answers, Piece
from pipeline.serving.worker import Worker
from pipeline.session.served import Served

MAX_BODY_BYTES = 4 << 20

JSON = "application/json"

BUSY_SECONDS = 1


def application(
    worker: Worker,
    served: Served,
    default: Sampling,
    *,
    hosts: Iterable[str] | None,
    origins: Sequence[str] = (),
) -> Starlette:
    """``default`` is how tokens are chosen where a client does not say.

    ``hosts`` are the names that a request may be addressed to, None for any: a web page that has its own name resolve
    to this machine is none of them. Pages of ``origins`` may read answers in a browser.
    """
    service = _Service(worker, served, default)
    middleware = [Middleware(_AddressedTo, frozenset(hosts))] if hosts is not None else []
    if origins:
        middleware.append(
            Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"])
        )
    return Starlette(
        routes=[
            Route("/health", service.health),
            Route("/v1/models", service.models),
            Route("/v1/models/{name:path}", service.model),
            Route("/v1/chat/completions", service.chat, methods=["POST"]),
            Route("/v1/completions", service.completions, methods=["POST"]),
        ],
        middleware=middleware,
        exception_handlers={PipelineError: _refused, HTTPException: _unrouted, ClientDisconnect: _left, 500: _failed},
    )


class _AddressedTo:
    """Refuses requests that are addressed to other hosts."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            found = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            name = found[: found.rfind(":")] if not found.endswith("]") and ":" in found else found
            if name.strip("[]").lower() not in self._hosts:
                problem = RequestError(
                    f"the request is addressed to {name[:64]!r}; expected {', '.join(sorted(self._hosts))}. Start the "
                    "server with --host to be reached by other names.",
                    status=403,
                    code="unknown_host",
                )
                await JSONResponse(replies.error(problem), problem.status)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Service:
    def __init__(self, worker: Worker, served: Served, default: Sampling) -> None:
        self._worker = worker
        self._served = served
        self._default = default
        self._started = int(time.time())

    async def health(self, request: Request) -> Response:
        is_alive = self._worker.is_alive
        content = {"status": "ok" if is_alive else "stopped", "texts": self._worker.num_jobs}
        return JSONResponse(content, 200 if is_alive else 503)

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return JSONResponse(self._model())

    async def chat(self, request: Request) -> Response:
        asked = requests.chat(await _read(request))
        self._check_model(asked.model)
        if self._served.chat.template is None:
            raise RequestError(
                f"{self._served.name} has no chat template, so messages cannot be put to it; expected a prompt. Use "
                "/v1/completions, or start the server with --chat.",
                param="messages",
                code="no_chat_template",
            )
        prompts = await run_in_threadpool(lambda: [self._served.chat.prompt(asked.messages)])
        return await self._answered(request, asked, prompts, "messages")

    async def completions(self, request: Request) -> Response:
        asked = requests.completion(await _read(request))
        self._check_model(asked.model)
        encode = self._served.chat.text
        prompts = await run_in_threadpool(
            lambda: [encode(each) if isinstance(each, str) else list(each) for each in asked.prompts]
        )
        return await self._answered(request, asked, prompts, "prompt")

    async def _answered(
        self, request: Request, asked: requests.Asked, prompts: Sequence[list[int]], field: str
    ) -> Response:
        """``field`` is the one that the prompts come from."""
        is_chat = isinstance(asked, requests.ChatAsked)
        continuations = [each for prompt in prompts for each in self._continuations(asked, prompt, field)]
        shape = replies.Shape(self._served.name, is_chat=is_chat, include_usage=asked.include_usage)
        answers = Answers(self._worker, self._served, continuations, asked.stop)
        if asked.stream:
            return StreamingResponse(_streamed(request, answers, shape, asked.n), media_type="text/event-stream")
        texts, reasons = [""] * len(continuations), ["stop"] * len(continuations)
        async with _unless_left(request, answers), aclosing(answers.events()) as events:
            async for event in events:
                if isinstance(event, Piece):
                    texts[event.index] += event.text
                else:
                    reasons[event.index] = event.reason
        return JSONResponse(shape.whole(texts, reasons, answers.usage(asked.n)))

    def _continuations(
        self, asked: requests.Asked, prompt: list[int], field: str
    ) -> list[tuple[list[int], Continuation]]:
        """The prompt with each of what is asked of it."""
        vocab = self._served.vocab_size
        beyond = next((token for token in prompt if not 0 <= token < vocab), None)
        if not prompt or beyond is not None:
            problem = "has no tokens" if beyond is None else f"has token {beyond}"
            raise RequestError(
                f"{field} {problem}; expected at least one, from 0 to {vocab - 1}.", param=field, code="invalid_value"
            )
        room = self._served.max_context - len(prompt)
        wanted = 1 if asked.max_tokens is None else asked.max_tokens
        if wanted > room:
            raise RequestError(
                f"{field}: {len(prompt)} tokens, and {wanted} more are asked for; expected at most "
                f"{self._served.max_context} together, which is the context here. Shorten the text, or ask for fewer.",
                param=field,
                code="context_length_exceeded",
            )
        try:
            sampling = replace(self._default, **asked.sampling)
        except SamplingError as error:
            raise RequestError(str(error), param=str(error).partition(" ")[0], code="invalid_value") from error
        most = room if asked.max_tokens is None else asked.max_tokens
        return [
            (
                prompt,
                Continuation(
                    max_new_tokens=most,
                    # Of several continuations of one prompt, none is to be like another.
                    sampling=sampling if sampling.seed is None else replace(sampling, seed=(sampling.seed + i) % SEEDS),
                    stop_ids=self._served.stop_ids,
                ),
            )
            for i in range(asked.n)
        ]

    def _model(self) -> dict[str, object]:
        return {"id": self._served.name, "object": "model", "created": self._started, "owned_by": "pte-pipeline"}

    def _check_model(self, name: str) -> None:
        if name != self._served.name:
            raise RequestError(
                f"model is {name[:64]!r}, and there is only {self._served.name!r} here.",
                status=404,
                param="model",
                code="model_not_found",
            )


async def _streamed(request: Request, answers: Answers, shape: replies.Shape, n: int) -> AsyncIterator[bytes]:
    async with _unless_left(request, answers), aclosing(answers.events()) as events:
        for chunk in shape.opening(len(answers.jobs)):
            yield replies.event(chunk)
        try:
            async for event in events:
                if isinstance(event, Piece):
                    yield replies.event(shape.piece(event.index, event.text))
                else:
                    yield replies.event(shape.end(event.index, event.reason))
        except PipelineError as error:
            yield replies.event(replies.error(error))
            return
        for chunk in shape.closing(answers.usage(n)):
            yield replies.event(chunk)
        yield replies.DONE


@asynccontextmanager
async def _unless_left(request: Request, answers: Answers) -> AsyncIterator[None]:
    """A client that leaves while the block runs has nothing computed for it any more."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        answers.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except BaseException:
        answers.cancel()
        raise
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _read(request: Request) -> bytes:
    """The body. Raises RequestError for one that is too large, or is not said to be JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        # A web page can send other kinds to any address without asking the server first.
        raise RequestError(f"the body is {kind[:64] or 'of no kind'}; expected {JSON} as Content-Type.", status=415)
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY_BYTES:
            raise RequestError(
                f"the body is larger than {MAX_BODY_BYTES} bytes; expected at most that.", status=413, code="too_large"
            )
    return bytes(data)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, PipelineError)
    if isinstance(error, TextError):
        error = RequestError(str(error), code="invalid_value")
    status = error.status if isinstance(error, RequestError) else 500
    headers = {"Retry-After": str(BUSY_SECONDS)} if status == 503 else None
    return JSONResponse(replies.error(error), status, headers)


async def _unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    problem = RequestError(
        f"{request.method} {request.url.path[:64]}: {error.detail}; see /v1/models, /v1/chat/completions, "
        "/v1/completions and /health.",
        status=error.status_code,
    )
    return JSONResponse(replies.error(problem), error.status_code, error.headers)


async def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=400)


async def _failed(request: Request, error: Exception) -> Response:
    problem = RequestError(f"the server failed: {type(error).__name__}.", status=500)
    return JSONResponse(replies.error(problem), 500)
