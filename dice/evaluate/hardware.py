"""What a prompt may say of the GPU that a kernel is for."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

from dice.errors import MachineError, UserError
from dice.launch import code_command, environment

_PROBE = """
import json, torch
p = torch.cuda.get_device_properties(0)
print(json.dumps([p.name, p.major, p.minor, p.multi_processor_count, p.total_memory >> 20,
                  getattr(p, "shared_memory_per_block_optin", p.shared_memory_per_block) >> 10, p.L2_cache_size >> 20]))
"""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Sizes in the units of the names. `capability`: as in sm_90."""

    name: str
    capability: int
    multiprocessors: int
    memory_gib: int
    shared_kib: int  # for one block, at most
    l2_mib: int
    bandwidth_gb_s: int = 0  # 0: not known

    @property
    def facts(self) -> str:
        """For a prompt."""
        bandwidth = f"- {self.bandwidth_gb_s} GB/s to it\n" if self.bandwidth_gb_s else ""
        return (
            f"The kernel is for one GPU, an {self.name}:\n- compute capability sm_{self.capability}\n"
            f"- {self.multiprocessors} multiprocessors\n- {self.memory_gib} GiB of memory\n{bandwidth}"
            f"- {self.l2_mib} MiB of L2 cache\n- up to {self.shared_kib} KiB of shared memory for a block\n"
            "- 65536 registers a multiprocessor, at most 255 a thread\n- at most 1024 threads a block, warps of 32"
        )


KNOWN = {
    gpu.name.removeprefix("NVIDIA ").casefold(): gpu
    for gpu in (
        Gpu("NVIDIA A100 SXM 80GB", 80, 108, 80, 163, 40, 2039),
        Gpu("NVIDIA A100 SXM 40GB", 80, 108, 40, 163, 40, 1555),
        Gpu("NVIDIA H100 SXM", 90, 132, 80, 227, 50, 3350),
        Gpu("NVIDIA H100 PCIe", 90, 114, 80, 227, 50, 2039),
        Gpu("NVIDIA H200 SXM", 90, 132, 141, 227, 50, 4800),
        Gpu("NVIDIA L40S", 89, 142, 48, 99, 96, 864),
        Gpu("NVIDIA RTX 4090", 89, 128, 24, 99, 72, 1008),
    )
}


def find_gpu(name: str) -> Gpu:
    """The GPU of that name; "here" for this machine's. Raises `UserError`, or `MachineError` where there is none."""
    if name == "here":
        return _here()
    found = KNOWN.get(name.casefold().removeprefix("nvidia ").strip())
    if found is None:
        raise UserError(f"There are no facts about {name!r}; give `here`, or one of {', '.join(KNOWN)}.")
    return found


def _here() -> Gpu:
    """Asked in a process of its own, so that this one does not begin to use the GPU."""
    done = subprocess.run(code_command(_PROBE), env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError("There is no GPU here whose facts a prompt could state.")
    name, major, minor, count, memory, shared, l2 = json.loads(done.stdout.splitlines()[-1])
    return Gpu(name, 10 * major + minor, count, round(memory / 1024), shared, l2)
