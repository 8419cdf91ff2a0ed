"""`dice generate --endpoint`: the replies of a server, each verified here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dice.commands.arguments import Endpoint as Account
from dice.commands.endpoint_args import key_of, settings_of
from dice.endpoint.client import Endpoint, Replies
from dice.endpoint.request import Request
from dice.errors import MachineError
from dice.generation import RESAMPLE_TEMPERATURE, Attempt, Received
from dice.problem import Problem
from dice.prompts import NO_KERNEL, PROMPTS, extract_kernel
from dice.verify import Verifier

if TYPE_CHECKING:
    from dice.commands.generate import Generate

TAUGHT = {"nano": "compact"}  # which of our prompts a model was taught, by the name that `dice serve` gives it


def from_endpoint(args: Generate, problem: Problem, verifier: Verifier) -> list[Attempt]:
    """All replies, the first at the temperature that was asked for. Raises `MachineError` where none came."""
    chosen = TAUGHT.get(args.model, "one-shot") if args.prompt == "auto" else args.prompt
    text = PROMPTS[chosen](problem)
    account = Account(base_url=args.endpoint)
    found: list[Attempt] = []
    # The second reply on is sampled, as without a server.
    for temperature, count in ((args.temperature, 1), (args.temperature or RESAMPLE_TEMPERATURE, args.samples - 1)):
        settings = settings_of(account, args.model, temperature=temperature, max_tokens=args.max_new_tokens)
        requests = [Request(text, key=str(index)) for index in range(count)]
        with Replies(Endpoint(settings, key_of(account)), requests) as replies:
            for reply in replies:
                if not reply.answered:
                    raise MachineError(f"The server gave no answer: {reply.error}.")
                kernel = extract_kernel(reply.text)
                verdict = NO_KERNEL if kernel is None else verifier.verify(problem, kernel)
                received = Received(reply.text, reply.usage.tokens_out, reply.seconds, reply.outcome)
                found.append(Attempt((received,), kernel, verdict))
    return found
