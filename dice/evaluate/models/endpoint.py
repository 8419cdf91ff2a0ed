"""Answers from an OpenAI-compatible endpoint. Its ledger lies in the run's folder: nothing is paid for twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dice.endpoint.client import Endpoint, Replies
from dice.endpoint.request import Reply, Request, RequestSettings
from dice.evaluate.models.base import Answer, Question

# What the question itself brought about. Anything else may go better next time.
OWN_FAULTS = frozenset({"refused", "no_choices", "no_content"})


class EndpointModel:
    """Raises `EndpointStopped`, from `answer`, where no further request can succeed."""

    gpu: int | None = None

    def __init__(self, settings: RequestSettings, key: str, ledger: Path):
        self.settings = settings
        self._endpoint = Endpoint(settings, key, ledger)
        self._replies: Replies | None = None

    @property
    def account(self) -> dict[str, object]:
        return self._endpoint.account.to_json()

    def answer(self, questions: Sequence[Question]) -> Iterator[tuple[Question, Answer]]:
        requests = [Request(one.prompt, key=f"{one.task.key} {one.sample} {one.seed}", tag=one) for one in questions]
        with Replies(self._endpoint, requests) as self._replies:
            for reply in self._replies:
                yield reply.request.tag, self._read(reply)

    def _read(self, reply: Reply) -> Answer:
        usage = reply.usage
        cost = self.settings.cost(usage.tokens_in, usage.tokens_out)
        if not reply.answered:
            said = f"{reply.outcome}: {reply.error}"
            return Answer(stop="error", error=said, passing=reply.outcome not in OWN_FAULTS, cost=cost)
        return Answer(
            reply.text,
            stop="length" if reply.outcome == "length" else "end",
            prompt_tokens=usage.tokens_in,
            tokens=usage.tokens_out,
            seconds=reply.seconds,
            cost=cost,
            more={"estimated": True} if usage.estimated else {},
        )

    def close(self) -> None:
        if self._replies is not None:
            self._replies.__exit__()
