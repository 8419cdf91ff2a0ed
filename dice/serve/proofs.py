"""`/v1/verify`: a problem and a kernel in, the stages of the verification and the verdict out. Runs in the same jail as
`dice verify`; who may ask is a matter of `ServeSettings.verifies`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from dice.errors import MachineError
from dice.files import JsonObject
from dice.kernel import Kernel
from dice.problem import Problem
from dice.prompts import NO_KERNEL, extract_kernel
from dice.serve import events
from dice.serve.errors import ApiError
from dice.serve.wire import VerifyRequest
from dice.serve.workers import BUSY_S, Finished, Workers
from dice.verdict import Verdict
from dice.verify import Verifier
from dice.verify.sandbox.cancel import Cancellation

log = logging.getLogger("dice.serve")


class Proofs:
    """Verifies for clients, as many at a time as the machine takes. `trouble`: why it cannot, a sentence."""

    def __init__(self, allowed: bool, backend: str) -> None:
        self.trouble = "" if allowed else "This server verifies nothing for clients of other machines."
        self.backend = ""
        self._wanted = backend
        self._verifier: Verifier | None = None
        self._workers: Workers | None = None

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
        except Exception:  # texts are served all the same, and whoever wants to verify is told
            self.trouble = "The verifier of this server could not be started; its log says why."
            log.exception("the verifier could not be started")
            return
        self._workers = Workers(verifier.default_workers, "verifications")
        self.backend, self._verifier = verifier.backend, verifier

    def close(self) -> None:
        if self._verifier is not None and self._workers is not None:
            self._workers.close()
            self._verifier.close()

    @property
    def verifier(self) -> Verifier:
        """Raises `ApiError` where nothing is verified, or not yet."""
        if self.trouble:
            raise ApiError(403, self.trouble, code="verification_off")
        if self._verifier is None:
            raise ApiError(503, "The verifier is still starting.", code="not_ready", retry_s=BUSY_S)
        return self._verifier

    async def stages(
        self, request: VerifyRequest, count: Callable[[Verdict], None] = lambda verdict: None
    ) -> AsyncGenerator[tuple[str, Verdict | None, Kernel | None], None]:
        """(stage, None) as each begins, and last ("done", the verdict), of which `count` is told.

        Raises `ApiError`, `ProblemError`."""
        verifier, workers = self.verifier, self._workers
        assert workers is not None
        # In a thread, since the source of a request takes a while to be parsed.
        problem = await asyncio.to_thread(Problem(request.problem, name="problem").check)
        kernel = (
            Kernel(request.kernel)
            if request.kernel is not None
            else await asyncio.to_thread(extract_kernel, request.reply or "")
        )
        if kernel is None:
            count(NO_KERNEL)
            yield "done", NO_KERNEL, None
            return
        cancellation = Cancellation(single=True)
        options = replace(verifier.options, timing=request.timing, trials=request.trials)

        def work(tell: Callable[[str], None]) -> Verdict:
            return verifier.verify(problem, kernel, options, on_stage=tell, cancellation=cancellation)

        begun: set[str] = set()
        async with aclosing(workers.follow(work, cancellation, "wait")) as told:
            async for one in told:
                if isinstance(one, Finished):
                    count(one.result)
                    yield "done", one.result, kernel
                elif one not in begun:  # each trial goes through them again
                    begun.add(one)
                    yield one, None, kernel


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


def answer(verdict: Verdict, kernel: Kernel | None) -> JsonObject:
    """`roofline_share`: how much of the reference's roofline the kernel reached, where it was timed."""
    share = verdict.timing.roofline_share if verdict.timing is not None else None
    return {"verdict": verdict.to_json(), "kernel": kernel.source if kernel else None, "roofline_share": share}
