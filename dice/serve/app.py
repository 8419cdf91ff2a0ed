"""The routes, and what they have in common: one model, one engine, one verifier."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Annotated

from fastapi import Body, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp

import dice
from dice.files import JsonObject
from dice.model.sdar import SDAR
from dice.model.tokenizer import Tokenizer
from dice.serve import errors, optimizing, page, proofs, streaming
from dice.serve.errors import ApiError
from dice.serve.forms import ChatForm, CompletionForm, EditForm, Form
from dice.serve.guard import Guard
from dice.serve.metrics import Metrics
from dice.serve.optimizing import Optimizer
from dice.serve.orders import Counter, Order, new_engine
from dice.serve.proofs import Proofs
from dice.serve.scheduler import Scheduler
from dice.serve.settings import ServeSettings
from dice.serve.wire import ChatRequest, CompletionRequest, Decoding, EditRequest, OptimizeRequest, VerifyRequest
from dice.verdict import Verdict

WARM_UP = [{"role": "user", "content": "x"}]


class Service:
    """Everything behind the routes. `closing`: no longer ready for requests."""

    def __init__(
        self, model: SDAR, tokenizer: Tokenizer, settings: ServeSettings, on_death: Callable[[], None] = lambda: None
    ) -> None:
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.created = int(time.time())
        self.scheduler = Scheduler(lambda: new_engine(model, settings), on_death)
        self.counter = Counter(model, tokenizer, self.scheduler, settings)
        self.metrics = Metrics(self.scheduler, settings.slots)
        self.proofs = Proofs(settings.verifies, settings.backend)
        self.optimizer = Optimizer(self.proofs, self.counter)
        self.closing = False

    @asynccontextmanager
    async def running(self, app: FastAPI) -> AsyncIterator[None]:
        """The engine at once; the verifier, which takes seconds to start, while requests are answered already."""
        self.scheduler.start()
        await asyncio.to_thread(self.tokenizer.encode_chat, WARM_UP)
        opening = asyncio.create_task(asyncio.to_thread(self.proofs.open))
        try:
            yield
        finally:
            self.closing = True
            await opening
            self.optimizer.close()
            self.scheduler.stop()
            await asyncio.to_thread(self.proofs.close)

    def check_model(self, asked: Decoding) -> None:
        """Raises `ApiError` for another model than the one that is served."""
        if asked.model is not None and asked.model != self.settings.model:
            said = f"The model that is served here is `{self.settings.model}`."
            raise ApiError(404, said, "model", "model_not_found")

    async def send(self, request: Request, asked: Decoding, order: Order, form: Form) -> Response:
        """Whole or as a stream, and counted either way."""
        if asked.stream:
            body = streaming.stream(order, form, self.tokenizer, asked.diffusing)
            return streaming.EventStream(self._counted(request, order, body), order.give_up)
        try:
            data = await streaming.whole(request, order, form)
        finally:
            order.give_up()
        self._count(request, order)
        return JSONResponse(data, headers={"x-dice-forwards": str(order.forwards)})

    async def _counted(
        self, request: Request, order: Order, body: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        started, before = time.monotonic(), True
        async with aclosing(body):
            async for part in body:
                if before and any(choice.answer.text for choice in order.choices):
                    before = False
                    self.metrics.first.observe(time.monotonic() - started)
                yield part
        self._count(request, order)

    def _count(self, request: Request, order: Order) -> None:
        self.metrics.tokens.labels("prompt").inc(order.prompt_tokens)
        self.metrics.tokens.labels("completion").inc(order.completion_tokens)
        request.scope.setdefault("state", {}).update(
            prompt_tokens=order.prompt_tokens, completion_tokens=order.completion_tokens, forwards=order.forwards
        )


def make_app(service: Service) -> ASGIApp:
    """The application, behind its guard."""
    app = FastAPI(
        title="dice serve",
        version=dice.__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=service.running,
    )
    errors.install(app)
    _add_texts(app, service)
    _add_verification(app, service)
    _add_state(app, service)
    page.add(app, service.tokenizer, service.model, service.settings, service.proofs)
    return Guard(app, service.settings, service.metrics)


def _add_texts(app: FastAPI, service: Service) -> None:
    name, tokenizer = service.settings.model, service.tokenizer

    @app.post("/v1/chat/completions")
    async def chat(request: Request, asked: Annotated[ChatRequest, Body()]) -> Response:
        service.check_model(asked)
        order = await service.counter.chat(asked)
        form = ChatForm(name, tokenizer, bool(asked.logprobs), asked.likeliest, asked.include_usage)
        return await service.send(request, asked, order, form)

    @app.post("/v1/completions")
    async def completions(request: Request, asked: Annotated[CompletionRequest, Body()]) -> Response:
        service.check_model(asked)
        order = await service.counter.completion(asked)
        form = CompletionForm(name, tokenizer, asked.logprobs is not None, asked.likeliest, asked.include_usage)
        return await service.send(request, asked, order, form)

    @app.post("/v1/edit")
    async def edit(request: Request, asked: Annotated[EditRequest, Body()]) -> Response:
        service.check_model(asked)
        order = await service.counter.edit(asked)
        return await service.send(request, asked, order, EditForm(name, tokenizer, include_usage=asked.include_usage))

    @app.get("/v1/models")
    async def models() -> JsonObject:
        return {"object": "list", "data": [described()]}

    @app.get("/v1/models/{model:path}")
    async def model(model: str) -> JsonObject:
        service.check_model(Decoding(model=model[:200]))
        return described()

    def described() -> JsonObject:
        return {"id": name, "object": "model", "created": service.created, "owned_by": "dice"}


def _add_verification(app: FastAPI, service: Service) -> None:
    @app.post("/v1/verify")
    async def verify(request: Request, asked: Annotated[VerifyRequest, Body()]) -> Response:
        stages = service.proofs.stages(asked, count)
        if asked.stream:
            return await streaming.EventStream.begun(proofs.stream(stages))
        _, verdict, kernel = await streaming.while_connected(request.receive, streaming.last(stages))
        assert verdict is not None
        return JSONResponse(proofs.answer(verdict, kernel))

    @app.post("/v1/optimize")
    async def optimize(request: Request, asked: Annotated[OptimizeRequest, Body()]) -> Response:
        steps = service.optimizer.steps(asked)
        if asked.stream:
            return await streaming.EventStream.begun(optimizing.stream(steps))
        return JSONResponse(await streaming.while_connected(request.receive, streaming.last(steps)))

    def count(verdict: Verdict) -> None:
        service.metrics.verdicts.labels(verdict.outcome).inc()


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the process lives."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        """Whether it takes requests."""
        if service.closing or not service.scheduler.alive:
            raise ApiError(503, "The engine is not running.", code="not_ready")
        return {"status": "ready"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
