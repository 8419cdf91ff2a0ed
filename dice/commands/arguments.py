"""Arguments that several commands take, how the command line reads them, and what they are held to."""

from __future__ import annotations

import math
import os
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    UnsupportedTypeAnnotationError,
)

from dice.errors import UserError

if TYPE_CHECKING:
    from dice.verify import Options, Verifier

Backend = Literal["auto", "cuda", "emulated"]
Provenance = Literal["any", "construction", "evidence"]
Replaced = Literal["any", "all"]
Protocol = Literal["dice", "kernelbench", "kernelbench-fp16", "kernelbench-bf16", "kernelbench-v0", "dice-paper"]
Remasking = Literal["sequential", "low_confidence_static", "low_confidence_dynamic", "entropy_bounded"]
TYPES = ConstructorRegistry()  # how tyro reads our types, given to every call of `tyro.cli`


@dataclass
class Endpoint:
    """An OpenAI-compatible endpoint, and how much of it may be used."""

    base_url: str = ""
    """Where the endpoint is, e.g. http://localhost:8000/v1."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the API key; a local endpoint needs none."""
    concurrency: int = 8
    """Requests under way at once."""
    requests_per_minute: int = 0
    """0: no limit but the endpoint's."""
    tokens_per_minute: int = 0
    """0: no limit but the endpoint's."""
    price_in: float = 0.0
    """USD for a million tokens of prompts."""
    price_out: float = 0.0
    """USD for a million tokens of answers."""
    max_cost: float = 0.0
    """USD that all calls with one --out may cost together; nothing is sent that might exceed it. 0: no limit."""


@dataclass(kw_only=True)
class Clustered:
    """For commands that may verify on other machines, too."""

    cluster: str = ""
    """Verify on all hosts of a Ray cluster: HOST:PORT of its head, or auto for the one that this machine is of."""
    mixed_hosts: bool = False
    """With --cluster: hosts may differ in GPU and compiler. Every verdict says where it was reached."""

    @property
    def make_verifier(self) -> Callable[..., Verifier]:
        """Makes verifiers, as `Verifier` does. Raises `UserError`, and `MachineError` where there is no cluster."""
        return verifier_maker(self.cluster, self.mixed_hosts)

    def require_backend(self, backend: str) -> None:
        """Raises `MachineError` where no kernel could be verified, before any work is spent."""
        if self.cluster:
            verifier_maker(self.cluster, self.mixed_hosts)
        else:
            from dice.verify.options import resolve_backend

            resolve_backend(backend)


def verifier_maker(cluster: str, mixed_hosts: bool) -> Callable[..., Verifier]:
    """See `Clustered`."""
    if not cluster:
        if mixed_hosts:
            raise UserError("--mixed-hosts is of a cluster; give --cluster, too.")
        from dice.verify import Verifier

        return Verifier
    from dice.cluster.connect import connect

    connect(cluster)  # before what needs Ray to be imported
    from dice.cluster.verifier import on_cluster

    return on_cluster(cluster, mixed_hosts)


@TYPES.primitive_rule
def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | UnsupportedTypeAnnotationError | None:
    """`Path | None` is shown as PATH, where tyro would say `{None}|PATH`. The word None is still read as None, so that
    a recipe's value can be unset."""
    members = get_args(info.type)
    if get_origin(info.type) not in (Union, types.UnionType) or len(members) != 2 or types.NoneType not in members:
        return None
    member = members[0] if members[1] is types.NoneType else members[1]
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(member, info.markers))
    if isinstance(spec, UnsupportedTypeAnnotationError):
        return spec
    return replace(
        spec,
        instance_from_str=lambda words: None if words == ["None"] else spec.instance_from_str(words),
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: ["None"] if value is None else spec.str_from_instance(value),
    )


def at_least(least: int, **flags: int | None) -> None:
    """Raises `UserError` for a flag, named as its field is, whose number is smaller. None is no number."""
    for name, number in flags.items():
        if number is not None and number < least:
            raise UserError(f"--{name.replace('_', '-')} must be at least {least}, not {number}.")


def numbers(arguments: Any, group: str | None = "") -> None:
    """Raises `UserError` for a number that no command can mean: NaN, infinity, or beyond 64 bits. `group`: what the
    names of the flags begin with, as those of a recipe's nested fields do; None where they never begin with a group."""
    for one in fields(arguments):
        value = getattr(arguments, one.name)
        name = (group or "") + one.name.replace("_", "-")
        if is_dataclass(value):
            numbers(value, None if group is None else f"{name}.")
        flag = f"--{name}"
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise UserError(f"{flag} must be a finite number, not {number}.")
            if isinstance(number, int) and not -(2**63) <= number < 2**63:
                raise UserError(f"{flag} must fit into 64 bits, and {number} does not.")


def spare(inputs: Iterable[Path], *outputs: Path | None) -> None:
    """Raises `UserError` for an output that is read from, or that another one is: writing it would lose something."""
    taken = {os.path.realpath(path): "is read from; write to another file" for path in inputs}
    for output in filter(None, outputs):
        place = os.path.realpath(output)
        if place in taken:
            raise UserError(f"{output} {taken[place]}.")
        taken[place] = "would be written twice; give each output a name of its own"


def options(**settings: Any) -> Options:
    """The verifier's. Raises `UserError` for what cannot be meant."""
    from dice.verify import Options

    try:
        return Options(**settings)
    except ValueError as error:
        raise UserError(f"{error}.") from None
