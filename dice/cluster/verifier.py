"""`ClusterVerifier`: the verifier of one machine, with jobs that run on the hosts of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dice.cluster.connect import Node, connect, nodes
from dice.cluster.host import HostFacts, Kind, LocalVerifier, MakeVerifier, exposure, why_apart
from dice.cluster.hosts import Hosts, NoHost, Poisonous
from dice.cluster.job import Job
from dice.errors import MachineError, UserError
from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify import Options, Verifier
from dice.verify.options import default_cache_dir
from dice.verify.sandbox.cancel import Cancellation
from dice.verify.stream import Places
from dice.verify.supervisor.job import ProblemFault
from dice.verify.verdict_cache import FILE, VerdictCache, cache_key, harness_version

FAULTS = 3  # hosts whose machinery may fail on a pair, before that is its verdict
MOST_WORKERS = 4096  # jobs that one driver keeps under way, a thread for each; several drivers may share out the pairs


class ClusterVerifier(Verifier):
    """Verifies pairs on all hosts of the cluster at `address`, which it owns until it is closed.

    `verify`, `verify_many` and `find_faults` are those of `Verifier`, and so are verdicts, but that they say their
    host. Verdicts are kept where this process runs. `mixed`: hosts may differ in GPU and toolchain. `part` (number,
    count): take every count-th host only, for drivers that share a cluster. `taken`: GPUs of nodes, by id, that this
    process uses otherwise.

    Raises `MachineError` where no host can verify or hosts differ, `UserError` for what is no address. A pair that ends
    its host again and again, and one that no host can take, gets a verdict `infra_error`.
    """

    def __init__(
        self,
        address: str = "auto",
        *,
        backend: str = "auto",
        options: Options | None = None,
        cache: Path | bool = False,
        mixed: bool = False,
        part: tuple[int, int] = (0, 1),
        taken: Mapping[str, int] | None = None,
        make: MakeVerifier | None = None,
    ) -> None:
        connect(address)
        self.options = options or Options()
        self._mixed = mixed
        if backend == "auto":
            backend = "cuda" if any(node.gpus for node in nodes()) else "emulated"
        on_gpus = backend == "cuda"

        def gpus(node: Node) -> int:
            return node.gpus - (taken or {}).get(node.id, 0) if on_gpus else 0

        def able(node: Node) -> bool:
            return gpus(node) > 0 or not on_gpus

        own = _own_part([node for node in nodes() if able(node)], *part)
        self._hosts = Hosts(
            make or LocalVerifier(backend, self.options),
            lambda node: own(node) and able(node),
            gpus,
            self._check,
        )
        self.backend = self._hosts.members[0].facts.kind.backend  # type: ignore[assignment]
        self._cache = VerdictCache(default_cache_dir() / FILE if cache is True else cache) if cache else None

    def __enter__(self) -> ClusterVerifier:
        return self

    def close(self) -> None:
        """End the hosts' processes and whatever still runs there."""
        self._hosts.close()
        if self._cache is not None:
            self._cache.close()

    @property
    def default_workers(self) -> int:
        """As many jobs as the hosts take at a time."""
        return max(1, min(MOST_WORKERS, sum(member.places for member in self._hosts.members)))

    @property
    def kinds(self) -> list[Kind]:
        """Of the hosts; one, unless hosts may differ."""
        return list(dict.fromkeys(member.facts.kind for member in self._hosts.members))

    @property
    def hosts_lost(self) -> int:
        return self._hosts.lost

    @property
    def jobs_hedged(self) -> int:
        """Times that a host was asked what another one, that said nothing any more, had under way."""
        return self._hosts.hedged

    def lacking(self) -> tuple[str, ...]:
        """What any host lacks."""
        return tuple(sorted({name for member in self._hosts.members for name in member.facts.lacking}))

    def _verify(
        self,
        problem: Problem,
        kernel: Kernel,
        options: Options,
        workers: int,
        cancellation: Cancellation,
        on_stage: Callable[[str], None] = lambda stage: None,
        places: Places | None = None,
    ) -> Verdict:
        """Stages are the host's own, and so is who waits there; nobody is told of them."""
        if self._cache is None:
            return self._ask(problem, kernel, options, cancellation)[0]
        for kind in self.kinds:
            if (found := self._cache.find(_key(problem, kernel, options, kind))) is not None:
                return found
        verdict, answering = self._ask(problem, kernel, options, cancellation)
        if answering is not None:
            self._cache.keep(_key(problem, kernel, options, answering), verdict)
        return verdict

    def _ask(
        self, problem: Problem, kernel: Kernel, options: Options, cancellation: Cancellation
    ) -> tuple[Verdict, Kind | None]:
        """The verdict of a host, and that host's kind. Where its machinery failed, others are asked; where it has no
        room for the problem, one that has the most."""
        own = None if options == self.options else options
        job = Job(lambda actor, number: actor.verify.remote(number, problem, kernel, own), problem.id)
        cancellation.watch(job)
        for _ in range(FAULTS):
            try:
                verdict, member = self._hosts.run(job)
            except (Poisonous, NoHost) as error:
                return Verdict("infra_error", "infra", f"{error}.", backend=self.backend), None
            if verdict.outcome == "unsupported" and not job.large and self._hosts.has_more_room(member):
                self._hosts.needs_room(job)
                continue
            fault = verdict.outcome == "infra_error"
            self._hosts.report(member, fault)
            if not fault:
                break
            job.avoids = member.node.id
        return verdict, member.facts.kind

    def _find_fault(self, cancellation: Cancellation, problem: Problem) -> ProblemFault | None:
        job = Job(lambda actor, number: actor.find_fault.remote(number, problem), problem.id)
        cancellation.watch(job)
        try:
            found: ProblemFault | None = self._hosts.run(job)[0]
        except (Poisonous, NoHost):  # our machinery failed: nothing is said of the problem
            return None
        return found

    def _check(self, found: list[HostFacts]) -> Callable[[HostFacts], bool]:
        """Which hosts may judge together. Raises `MachineError` where some of those `found` may not."""
        for one in found:
            if why := _unfit(one):
                raise MachineError(why)
        apart = why_apart({f"{one.name} {place}": one.kind for place, one in enumerate(found)})
        if apart and not self._mixed:
            raise MachineError(f"{apart} Take nodes of one kind, or give --mixed-hosts.")
        kinds = {one.kind for one in found}
        return lambda one: not _unfit(one) and (self._mixed or one.kind in kinds)


def on_cluster(address: str, mixed: bool = False) -> Callable[..., Verifier]:
    """What makes verifiers of a cluster where `Verifier` makes those of one machine, from the same arguments. Cores and
    GPUs are Ray's to give. Raises `MachineError`, `UserError`."""

    def make(
        *,
        devices: Sequence[int | str] | None = None,
        max_concurrent: int | None = None,
        builds: int | None = None,
        **settings: Any,
    ) -> ClusterVerifier:
        if devices:
            raise UserError("GPUs by name are those of one machine; a cluster's are used as Ray has them.")
        return ClusterVerifier(address, mixed=mixed, **settings)

    connect(address)
    return make


def _unfit(one: HostFacts) -> str:
    """Why a host must not verify for this process; empty where it may."""
    if one.kind.verifier != harness_version():
        theirs, ours = one.kind.verifier, harness_version()
        return f"{one.name} runs another DICE (verifier {theirs}, here {ours}): install the same on all hosts."
    return exposure(one.name, one.lacking)


def _own_part(present: list[Node], number: int, count: int) -> Callable[[Node], bool]:
    """Every count-th node. Raises `UserError` where there are too few."""
    if count == 1:
        return lambda node: True
    if len(present) < count:
        raise UserError(f"{count} processes verify on a cluster of {len(present)} nodes; each needs one of its own.")
    mine = {node.id for place, node in enumerate(present) if place % count == number}
    return lambda node: node.id in mine


def _key(problem: Problem, kernel: Kernel, options: Options, kind: Kind) -> str:
    return cache_key(problem, kernel, options, kind.backend, kind.device, kind.toolchain)
