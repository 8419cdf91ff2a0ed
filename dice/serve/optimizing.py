"""`/v1/optimize`: a module in; how it is cut, what becomes of each region, and the module with its kernels out.

Its code runs in the jail of `dice optimize`, and whoever may verify may ask."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from dice.errors import UserError
from dice.files import JsonObject
from dice.optimize.printing import Printed
from dice.optimize.region import Region
from dice.optimize.report import Event, told
from dice.optimize.run import Result, optimize_module
from dice.optimize.search import Policy
from dice.optimize.writers import RESAMPLE_TEMPERATURE, Answer, KernelWriter, Templates, Written
from dice.problem import Problem
from dice.prompts import PROMPTS, extract_kernel
from dice.scaffold import completed
from dice.serve import events
from dice.serve.errors import ApiError
from dice.serve.orders import Counter
from dice.serve.proofs import Proofs
from dice.serve.wire import ChatRequest, Message, OptimizeRequest
from dice.serve.workers import Finished, Workers
from dice.verify import Verifier
from dice.verify.sandbox.cancel import Cancellation
from dice.verify.sandbox.process import Cancelled
from dice.verify.sandbox.scratch import Scratch

AT_ONCE = 1  # a run verifies as many kernels at a time as the machine takes
GRACE_S = 900  # beyond the request's seconds: to follow the module before, and to put it together after


class Optimizer:
    """Optimises modules for clients, one after another."""

    def __init__(self, proofs: Proofs, counter: Counter) -> None:
        self._proofs, self._counter = proofs, counter
        self._workers = Workers(AT_ONCE, "optimizations")

    def close(self) -> None:
        self._workers.close()

    async def steps(self, request: OptimizeRequest) -> AsyncGenerator[JsonObject, None]:
        """Events as JSON, the last of type `result`. Raises `ApiError`, and `UserError` for a module that cannot be run
        or followed."""
        verifier, loop, cancellation = self._proofs.verifier, asyncio.get_running_loop(), Cancellation()
        problem = await asyncio.to_thread(Problem(request.problem, name="module").check)
        makers: dict[str, Callable[[], KernelWriter]] = {
            "templates": Templates,
            "model": lambda: Served(self._counter, loop, cancellation),
        }
        writers = [makers[name]() for name in dict.fromkeys(request.writers)]
        policy = Policy(samples=request.samples, seconds=request.seconds, keep=request.keep)

        def work(tell: Callable[[JsonObject], None]) -> Result:
            return _within(
                request.seconds + GRACE_S,
                cancellation,
                lambda: _run(problem, verifier, writers, policy, tell, cancellation),
            )

        waiting = {"type": "stage", "stage": "wait"}
        async with aclosing(self._workers.follow(work, cancellation, waiting)) as steps:
            async for one in steps:
                yield _answer(one.result) if isinstance(one, Finished) else one


def _run(
    problem: Problem,
    verifier: Verifier,
    writers: Sequence[KernelWriter],
    policy: Policy,
    tell: Callable[[JsonObject], None],
    cancellation: Cancellation,
) -> Result:
    """In a folder that is gone afterwards, and without the library: no client gets what another one's module gave."""
    stage = ""

    def show(what: str, done: int, total: int) -> None:
        nonlocal stage
        if what != stage:
            stage = what
            tell({"type": "stage", "stage": what})

    def pass_on(event: Event) -> None:
        tell(told(event))

    with Scratch() as scratch:
        folder = scratch.root / "run"
        return optimize_module(
            problem, verifier, writers, folder, policy=policy, show=show, tell=pass_on, cancellation=cancellation
        )


def _within(seconds: float, cancellation: Cancellation, work: Callable[[], Result]) -> Result:
    """Raises `UserError` where the work is not done in time, and is called off."""
    late = threading.Event()

    def end() -> None:
        late.set()
        cancellation.cancel()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        return work()
    except Cancelled:
        if late.is_set():
            raise UserError(f"The module was not done after {seconds:g} s.") from None
        raise
    finally:
        timer.cancel()


def _answer(result: Result) -> JsonObject:
    kernel = result.kernel.source if result.kernel is not None else None
    return {"type": "result", "kernel": kernel, "report": result.report.to_json()}


class Served:
    """The model that is served as a writer of kernels: its texts go into the engine's batches like any client's.

    It is asked in a thread, and its texts are written in `loop`.
    """

    is_certain = False

    def __init__(self, counter: Counter, loop: asyncio.AbstractEventLoop, cancellation: Cancellation) -> None:
        self.name = counter.settings.model
        self._counter, self._loop, self._cancellation = counter, loop, cancellation
        self._prompt = PROMPTS[counter.model.config.prompt]

    def write(self, region: Region, printed: Printed, before: Sequence[Written]) -> Answer | None:
        """Greedily at first, then drawn. Raises `Cancelled`."""
        number = len(before)
        message = Message(role="user", content=self._prompt(printed.problem))
        asked = ChatRequest(messages=[message], temperature=RESAMPLE_TEMPERATURE if number else 0, seed=number)
        writing = _Writing(asyncio.run_coroutine_threadsafe(self._text(asked), self._loop))
        self._cancellation.watch(writing)
        try:
            text = writing.future.result()
        except concurrent.futures.CancelledError:
            raise Cancelled from None
        except (ApiError, UserError) as error:  # a region of more text than the model reads, or a full queue
            return Answer(None, str(error).rstrip(".")) if not number else None
        return Answer(completed(printed.problem, text) or extract_kernel(text))

    async def _text(self, asked: ChatRequest) -> str:
        order = await self._counter.chat(asked)
        try:
            async with aclosing(order.steps()) as steps:
                async for _ in steps:
                    pass
        finally:
            order.give_up()
        return order.choices[0].answer.text


class _Writing:
    """A text under way, as a `Cancellation` ends it."""

    def __init__(self, future: concurrent.futures.Future[str]) -> None:
        self.future = future

    def kill(self) -> None:
        self.future.cancel()


async def stream(steps: AsyncGenerator[JsonObject, None]) -> AsyncGenerator[bytes, None]:
    """Each event under the name `dice.TYPE`."""
    async with aclosing(steps):
        async for step in steps:
            yield events.sse(step, f"dice.{step['type']}")
    yield events.DONE
