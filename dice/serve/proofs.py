"""`/v1/verify`: a problem and a kernel in, the stages of the verification and the verdict out. Runs in the same jail as
`dice verify`; who may ask is a matter of `ServeSettings.verifies`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from dice.errors import MachineError
from dice.kernel import Kernel
from dice.problem import Problem
from dice.prompts import NO_KERNEL, extract_kernel
from dice.serve import events
from dice.serve.errors import ApiError
from dice.serve.wire import VerifyRequest
from dice.verdict import Verdict
from dice.verify import Verifier
from dice.verify.sandbox.cancel import Cancellation
from dice.verify.sandbox.process import Cancelled

log = logging.getLogger("dice.serve")
QUEUE = 4  # verifications that may wait, for each that may run
BUSY_S = 10


class Proofs:
    """Verifies for clients, as many at a time as the machine takes. `trouble`: why it cannot, a sentence."""

    def __init__(self, allowed: bool, backend: str) -> None:
        self.trouble = "" if allowed else "This server verifies nothing for clients of other machines."
        self.backend = ""
        self._wanted = backend
        self._verifier: Verifier | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._under_way = self._most = 0

    def open(self) -> None:
        """Start the jail's warm process, which takes seconds; called in a thread, once."""
        if self.trouble:
            return
        try:
            verifier = Verifier(backend=self._wanted)
            verifier.__enter__()
        except MachineError as error:
            self.trouble = str(error)
            log.warning("nothing can be verified here: %s", error)
            return
        self._most = verifier.default_workers
        self._pool = ThreadPoolExecutor(self._most, thread_name_prefix="verify")
        self.backend, self._verifier = verifier.backend, verifier

    def close(self) -> None:
        if self._verifier is not None and self._pool is not None:
            self._verifier.close()
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def stages(self, request: VerifyRequest) -> AsyncGenerator[tuple[str, Verdict | None, Kernel | None], None]:
        """(stage, None) as each begins, and last ("done", the verdict). Raises `ApiError`, `ProblemError`."""
        problem = Problem(request.problem, name="problem").check()
        if self.trouble:
            raise ApiError(403, self.trouble, code="verification_off")
        if self._verifier is None or self._pool is None:
            raise ApiError(503, "The verifier is still starting.", code="not_ready", retry_s=BUSY_S)
        kernel = Kernel(request.kernel) if request.kernel is not None else extract_kernel(request.reply or "")
        if kernel is None:
            yield "done", NO_KERNEL, None
            return
        if self._under_way >= self._most * (1 + QUEUE):
            raise ApiError(429, "Too many verifications are waiting.", code="queue_full", retry_s=BUSY_S)
        loop, told = asyncio.get_running_loop(), asyncio.Queue[str]()
        cancellation = Cancellation(single=True)
        options = replace(self._verifier.options, timing=request.timing, trials=request.trials)

        def tell(stage: str) -> None:
            loop.call_soon_threadsafe(told.put_nowait, stage)

        def work(verifier: Verifier) -> Verdict:
            try:
                return verifier.verify(problem, kernel, options, on_stage=tell, cancellation=cancellation)
            finally:
                tell("done")

        self._under_way += 1
        working = loop.run_in_executor(self._pool, work, self._verifier)
        working.add_done_callback(self._one_less)
        begun = {"wait"}
        yield "wait", None, kernel
        try:
            while (stage := await told.get()) != "done":
                if stage not in begun:  # each trial goes through them again
                    begun.add(stage)
                    yield stage, None, kernel
            yield "done", await working, kernel
        except Cancelled:
            raise ApiError(503, "The server is closing.", code="closing") from None
        finally:
            if not working.done():
                cancellation.cancel()

    def _one_less(self, done: asyncio.Future[Any]) -> None:
        self._under_way -= 1
        if not done.cancelled() and done.exception() is not None and not isinstance(done.exception(), Cancelled):
            log.error("a verification failed: %s", type(done.exception()).__name__)


async def stream(
    stages: AsyncGenerator[tuple[str, Verdict | None, Kernel | None], None],
) -> AsyncGenerator[bytes, None]:
    """`dice.stage` events, and one `dice.verdict` with the kernel that it is about."""
    try:
        async for stage, verdict, kernel in stages:
            if verdict is None:
                yield events.sse({"type": "stage", "stage": stage}, "dice.stage")
            else:
                yield events.sse({"type": "verdict"} | answer(verdict, kernel), "dice.verdict")
    finally:
        await stages.aclose()
    yield events.DONE


def answer(verdict: Verdict, kernel: Kernel | None) -> dict[str, Any]:
    """`roofline_share`: how much of the reference's roofline the kernel reached, where it was timed."""
    share = verdict.timing.roofline_share if verdict.timing is not None else None
    return {"verdict": verdict.to_json(), "kernel": kernel.source if kernel else None, "roofline_share": share}
