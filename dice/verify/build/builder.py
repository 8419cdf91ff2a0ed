"""The jailed child that compiles one candidate's sources into its own scratch folder, and says how that went.

It sees the toolchain and the headers, and nothing else of the machine; it cannot write where builds are shared. Its
supervisor takes the library from the scratch folder once this process is gone.
"""

from __future__ import annotations

import contextlib
import socket
import sysconfig
from pathlib import Path

from dice.verify import emulator, toolchain
from dice.verify.build import shared as parts
from dice.verify.build.build import compile_into
from dice.verify.build.shared import Shared, SharedMissing
from dice.verify.build.sources import CompileError, CompileTimeout, LinkError, Sources, Unsupported
from dice.verify.ipc.channel import Channel
from dice.verify.ipc.messages import Compile, Compiled

MAX_LOG = 64 << 10  # characters of a compiler's log that travel


def main(link: socket.socket) -> None:
    channel = Channel(link)
    channel.send(_compile(channel.expect(Compile)))
    channel.receive()  # the supervisor ends this process


def warm_up() -> None:
    """Ask the compilers for their versions and read the headers once, for all builders that are forked from here."""
    emulator.compile_flags()  # reads /proc
    asked = toolchain.host_compiler_version, toolchain.cuda_toolkit
    for known in (*asked, parts.shadow_hash, parts.emulator_hash, parts.recipe_hash):
        with contextlib.suppress(toolchain.ToolchainError):  # said again, to the user, when something is to be built
            known()


def _compile(order: Compile) -> Compiled:
    shared = Shared(Path(order.cache_dir), makes=False)
    sources = Sources.from_json(order.sources)
    try:
        headers, log, foreign = compile_into(
            Path(order.scratch),
            sources,
            order.backend,
            shared,
            order.arch,
            order.timeout_s,
            order.sanitize,
        )
    except CompileError as error:
        return _refused(_kind(error), str(error), error.lines, error.log)
    except (Unsupported, emulator.Unsupported) as error:
        return _refused("unsupported", str(error))
    except SharedMissing as error:
        return _refused("shared_missing", str(error))
    except toolchain.ToolchainError as error:
        return _refused("machine", str(error))
    return Compiled(
        "built",
        headers=headers,
        log=log[:MAX_LOG],
        foreign=foreign.reason,
        word=foreign.word,
        variable=foreign.variable,
    )


def _kind(error: CompileError) -> str:
    if isinstance(error, LinkError):
        return "link_error"
    return "timeout" if isinstance(error, CompileTimeout) else "compile_error"


def _refused(kind: str, message: str, lines: tuple[str, ...] = (), log: str = "") -> Compiled:
    return Compiled(kind, message, lines, log[:MAX_LOG])


def visible(backend: str, cache_dir: Path) -> list[str]:
    """Paths that compiling reads; all else on the machine is hidden from a builder."""
    here = Path(toolchain.__file__).parent
    paths = [
        *("/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32"),
        *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
        *("/dev/null", "/proc/cpuinfo"),
        str(here),
        str(cache_dir / "headers"),
        str(toolchain.torch_folder() / "include"),
        str(toolchain.torch_folder() / "lib"),
        str(toolchain.torch_folder() / "utils" / "cpp_extension.py"),
        sysconfig.get_path("include"),
        sysconfig.get_path("stdlib"),
        *toolchain.compiler_paths(toolchain.host_compiler()),
    ]
    if backend == "emulated":
        paths.append(str(emulator.runtime(cache_dir).parent))
    else:
        toolkit = toolchain.cuda_toolkit()
        paths += [str(toolkit.home), str(toolkit.nvcc)]  # which may be a link from elsewhere too
    return [path for path in dict.fromkeys(paths) if path and Path(path).exists()]
