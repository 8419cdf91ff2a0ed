"""`dice doctor`: what this machine can do, and what is missing for the rest."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.text import Text

import dice
from dice.commands.progress import bars
from dice.files import JsonObject
from dice.terminal import Console

if TYPE_CHECKING:
    from dice.cluster.host import Kind
    from dice.verdict import Backend
    from dice.verify.supervisor.guarantees import Guarantee

GENERAL_ADVICE = "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1; docker: --security-opt seccomp=...)"
LACKS = {"memory limit": "report this", "no leftovers": "report this"}
COLOURS = {"ok": "green", "missing": "yellow", "info": ""}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: what was looked at, what was found, and what to do when it is missing."""

    name: str
    state: Literal["ok", "missing", "info"]
    found: str
    advice: str = ""


@dataclass
class Doctor:
    """Say what this machine can do, and what is missing for the rest.

    Example: dice doctor
    """

    json: bool = False
    """Print one JSON object instead of text."""

    probe: bool = False
    """Also verify hostile kernels among others (about a minute), and exit with 1 where a promise is not kept."""

    cluster: str = ""
    """Examine every node of a Ray cluster instead: HOST:PORT of its head, or auto for the one that this machine is of.
    Exit code 1 where they must not verify together."""

    def run(self) -> int:
        if self.cluster:
            return _examine_cluster(self.cluster, self.json)
        findings = examine()
        can = {finding.name: finding.state == "ok" for finding in findings}
        backends = [name for name in ("cuda", "emulated") if can[f"{name} backend"]]
        console = Console(highlight=False, soft_wrap=True)
        if not self.json:
            for finding in findings:
                console.print(_line(finding))
            verdict = f"can check kernels on: {', '.join(backends)}" if backends else "cannot check kernels"
            console.print(f"\nThis machine {verdict}.")
        probed: JsonObject = _probe(backends[0], console, quiet=self.json) if self.probe and backends else {}
        if self.json:
            said = {"backends": backends, "findings": [asdict(finding) for finding in findings]}
            print(json.dumps(said | ({"probes": probed} if probed else {})))
        return 3 if not backends else 1 if probed.get("broken") else 0


def _examine_cluster(address: str, as_json: bool) -> int:
    """Tell of every node, and whether verdicts of all of them may stand side by side."""
    from dice.cluster.connect import connect, on_every_node
    from dice.cluster.host import exposure, why_apart

    connect(address)
    console = Console(highlight=False, soft_wrap=True)
    kinds: dict[str, dict[str, Kind]] = {"cuda": {}, "emulated": {}}
    troubles: list[str] = []
    told: list[JsonObject] = []
    for node, answer in on_every_node(_examine_node):
        name = str(node)
        if isinstance(answer, Exception):
            troubles.append(f"{name} could not be examined: {str(answer).strip().splitlines()[-1][:200]}")
            continue
        findings, found, lacking = answer
        for backend, kind in found.items():
            kinds[backend][name] = kind
        troubles += filter(None, [exposure(name, lacking)])
        ray_has = Finding("Ray", "info", f"hands out {node.cpus} cores and {node.gpus} GPUs")
        told.append({"node": name, "findings": [asdict(finding) for finding in (ray_has, *findings)]})
        if not as_json:
            console.print(Text(f"{name}", style="bold"))
            for finding in (ray_has, *findings):
                console.print(_line(finding))
            console.print()
    backend = "cuda" if kinds["cuda"] else "emulated"
    troubles += filter(None, [why_apart(kinds[backend])])
    able = len(kinds[backend])
    if as_json:
        print(json.dumps({"backend": backend if able else None, "hosts": able, "troubles": troubles, "nodes": told}))
    else:
        for trouble in troubles:
            console.print(Text(trouble, style="bold yellow"))
        console.print(
            f"{able} of {len(told)} nodes can check kernels" + (f" on the {backend} backend." if able else ".")
        )
    return 3 if not able else 1 if troubles else 0


def _examine_node() -> tuple[list[Finding], dict[str, Kind], tuple[str, ...]]:
    """What a node finds of itself, what its verdicts depend on by backend, and what its sandbox lacks."""
    from dice.cluster.host import kind_of

    findings = examine()
    state = {finding.name.strip(): finding.state for finding in findings}
    backends: tuple[Backend, ...] = ("cuda", "emulated")
    kinds = {str(one): kind_of(one) for one in backends if state[f"{one} backend"] == "ok"}
    return findings, kinds, tuple(name for name, found in state.items() if found == "missing")


def _line(finding: Finding) -> Text:
    mark = finding.state if finding.state != "info" else ""
    line = Text.assemble((f"{mark:<7}", COLOURS[finding.state]), f"  {finding.name:<18} {finding.found}")
    return line.append(f" -> {finding.advice}" if finding.advice else "", style="dim")


def _probe(backend: str, console: Console, quiet: bool) -> JsonObject:
    """Verify hostile kernels among others, tell what became of each, and sum it up."""
    from dice.verify.probes.runner import Result, run, tasks

    wanted, started = tasks(quick=True), time.monotonic()
    results: list[Result] = []
    with bars(not quiet) as show:
        for result in run(wanted, backend):
            results.append(result)
            show("probes", sum(bool(one.ending) for one in results), len(wanted))
    broken = [one for one in results if one.state == "broken"]
    excused = [one for one in results if one.state == "excused"]
    user, seconds = _user(), time.monotonic() - started
    tier = next((one.sandbox for one in results if one.sandbox), "")
    if not quiet:
        console.print()
        for one in (*broken, *excused):
            ending = ", then right" if one.ending == "right" else ""
            console.print(_line(Finding(f"{one.name}{ending}", "missing", one.promise)))
            for how in one.broken:
                console.print(Text(f"           {how}"))
            if one.excused:
                said = f"           as said above, not guaranteed here: {', '.join(one.excused)}"
                console.print(Text(said, style="dim"))
        held = len(results) - len(broken) - len(excused)
        console.print(
            f"{held} of {len(results)} promises held under attack, as {user}, with {tier or 'no sandbox'}, "
            f"on the {backend} backend, in {seconds:.0f} s."
        )
    return {
        "user": user,
        "sandbox": tier,
        "backend": backend,
        "seconds": round(seconds, 1),
        "held": len(results) - len(broken) - len(excused),
        "excused": len(excused),
        "broken": len(broken),
        "results": [asdict(one) | {"state": one.state} for one in results],
    }


def _user() -> str:
    return "root" if os.geteuid() == 0 else f"an ordinary user (uid {os.geteuid()})"


def examine() -> list[Finding]:
    """Look at the compiler, the GPU, the sandbox, the model and the disk. Starts short processes, changes nothing."""
    import torch

    from dice.verify.options import compiler_trouble, find_host_compiler, probe_cuda, toolchain, why_no_cuda
    from dice.verify.toolchain import find_nvcc

    gxx, nvcc, no_cuda = find_host_compiler(), find_nvcc(), why_no_cuda()
    lacks, broken = compiler_trouble("emulated"), compiler_trouble("cuda") if nvcc else "not found"
    gpu = str(probe_cuda()["device"]) if not no_cuda else ""
    python = f"Python {platform.python_version()}, torch {torch.__version__}, dice {dice.__version__}"
    return [
        Finding(
            "machine", "info", f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"
        ),
        Finding("python", "ok", python),
        Finding("C++ compiler", *_tool(gxx, toolchain("emulated"), lacks, "install g++ (Debian: apt-get install g++)")),
        Finding("nvcc", *_tool(nvcc, toolchain("cuda"), broken, "install the CUDA toolkit, for a GPU only")),
        Finding("GPU", "ok", gpu) if gpu else Finding("GPU", "missing", no_cuda, "timings need an NVIDIA GPU"),
        Finding("emulated backend", "ok", "kernels run on the CPU, thread by thread: right or wrong, no timing")
        if not lacks
        else Finding("emulated backend", "missing", "there is no usable C++ compiler", "install g++"),
        Finding("cuda backend", "ok", f"kernels run on {gpu}")
        if gpu
        else Finding("cuda backend", "missing", no_cuda, "use --backend emulated"),
        *_sandbox(),
        _model(),
        _cache(),
    ]


def _tool(
    path: Path | str | None, version: str, trouble: str, advice: str
) -> tuple[Literal["ok", "missing"], str, str]:
    return ("missing", trouble, advice) if trouble else ("ok", f"{version} ({path})", "")


def _sandbox() -> list[Finding]:
    """What the sandbox promises, each tried by a jailed process that goes for it."""
    from dice.verify.options import default_cache_dir
    from dice.verify.sandbox.process import MachineryError, Zygote
    from dice.verify.sandbox.visible_paths import candidate_view
    from dice.verify.supervisor.assignment import candidate_limits
    from dice.verify.supervisor.guarantees import Isolation, examine

    cache_dir = default_cache_dir()
    zygote = Zygote()
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        found: Isolation = examine(zygote, cache_dir, candidate_limits(1024, candidate_view(cache_dir)))
    except (MachineryError, OSError) as error:
        return [Finding("sandbox", "missing", f"it could not be tried: {error}", "look at DICE_CACHE and TMPDIR")]
    finally:
        zygote.close()
    held = sum(guarantee.held for guarantee in found.guarantees)
    advice = "do not verify kernels of people you do not trust here" if found.lacking else ""
    summary = Finding(
        "sandbox",
        "missing" if found.lacking else "ok",
        f"{found.tier}: {held} of {len(found.guarantees)} guarantees hold; none covers the NVIDIA driver",
        advice,
    )
    return [summary, *(_guarantee(one) for one in found.guarantees)]


def _guarantee(one: Guarantee) -> Finding:
    name = f"  {one.name}"
    if one.held:
        return Finding(name, "ok", f"a candidate {one.promise}")
    return Finding(name, "missing", one.found, LACKS.get(one.name, GENERAL_ADVICE))


def _model() -> Finding:
    from dice.errors import UserError
    from dice.model.checkpoint import resolve_model

    try:
        return Finding("nano checkpoint", "ok", str(resolve_model("nano")))
    except UserError as error:
        return Finding("nano checkpoint", "missing", str(error), "give --model a folder or a hub id")


def _cache() -> Finding:
    from dice.verify.options import default_cache_dir

    folder = default_cache_dir()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free / 2**30
    if not os.access(existing, os.W_OK):
        return Finding("cache", "missing", f"{folder} is not writable", "set DICE_CACHE to a folder that is")
    state: Literal["ok", "missing"] = "ok" if free > 1 else "missing"
    return Finding("cache", state, f"{folder}, {free:.0f} GiB free", "" if free > 1 else "free some disk space")
