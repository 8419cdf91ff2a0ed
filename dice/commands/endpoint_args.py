"""What commands that ask an endpoint share: settings and key from the command line, and lines about the account."""

from __future__ import annotations

import os
from collections.abc import Iterator

from dice.commands.arguments import Endpoint
from dice.endpoint.request import RequestSettings
from dice.errors import UserError
from dice.files import JsonObject


def settings_of(args: Endpoint, model: str, *, temperature: float, max_tokens: int) -> RequestSettings:
    if not args.base_url or not model:
        raise UserError("Give --base-url and --model: which endpoint to ask, and for which of its models.")
    return RequestSettings(
        args.base_url,
        model,
        temperature=temperature,
        max_tokens=max_tokens,
        concurrency=args.concurrency,
        requests_per_minute=args.requests_per_minute,
        tokens_per_minute=args.tokens_per_minute,
        price_in=args.price_in,
        price_out=args.price_out,
        max_cost=args.max_cost,
    )


def key_of(args: Endpoint) -> str:
    """The API key, from the environment, less the line's end that a file of keys leaves there. A local endpoint needs
    none."""
    key = os.environ.get(args.api_key_env, "").strip()
    if not key and args.api_key_env != type(args).api_key_env:
        raise UserError(f"The environment has no variable {args.api_key_env} with an API key.")
    return key


def lines_of(account: JsonObject) -> Iterator[str]:
    """What a person wants to know of an account's JSON form."""
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in account["outcomes"].items()) or "none"
    yield f"requests: {account['sent']} sent ({outcomes})"
    if account["unknown"]:
        again = account["resent"]
        yield f"{account['unknown']} were under way when a run was killed, {again} of them were sent again"
    guess = f", of {account['estimated']} requests estimated" if account["estimated"] else ""
    cost = f", {account['cost']:.4f} USD" if account["cost"] else ""
    yield f"tokens: {account['tokens_in']} in, {account['tokens_out']} out{guess}{cost}"
