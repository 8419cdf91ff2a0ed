"""What the ranks of a tensor-parallel engine compute together; one rank alone is the simplest group."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dice.model.shard import Shard

# For the slowest step there is. Ranks that died are noticed at once, by other means.
PATIENCE = timedelta(minutes=30)
ABORT_S = 5.0  # at most, that an end is waited for


class Group:
    """This rank alone: sums and what is gathered are its own."""

    shard = Shard(0, 1)

    def add(self, x: Tensor) -> Tensor:
        """x, contiguous, added up over all ranks, in place."""
        return x

    def gather(self, x: Tensor) -> Tensor:
        """The `x` of all ranks, which have the same shape: [ranks, ...]. Bit for bit the same on all of them."""
        return x[None]

    def broadcast(self, x: Tensor) -> None:
        """Rank 0's `x`, on all ranks."""

    def abort(self) -> None:
        """Some rank has died: wait for nobody any more."""


class Connected(Group):
    """Ranks that are processes of this host: NCCL between GPUs, also within recorded steps, else gloo over the loopback
    interface. The group is this engine's own, so that a trainer's in the same process is left alone.

    `meeting`: a file, not there yet, in a folder that this user's processes alone can reach.
    """

    def __init__(self, shard: Shard, device: torch.device, meeting: Path) -> None:
        self.shard = shard
        distributed: Any = dist  # its types do not know all that it has
        store = distributed.FileStore(str(meeting), shard.size)
        if device.type == "cuda":
            options = distributed.ProcessGroupNCCL.Options()
            options._timeout = PATIENCE
            self._group = distributed.ProcessGroupNCCL(store, shard.rank, shard.size, options)
        else:
            options = distributed.ProcessGroupGloo._Options()
            options._devices = [distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            options._timeout = PATIENCE
            self._group = distributed.ProcessGroupGloo(store, shard.rank, shard.size, options)

    def add(self, x: Tensor) -> Tensor:
        self._group.allreduce([x]).wait()
        return x

    def gather(self, x: Tensor) -> Tensor:
        found = x.new_empty(self.shard.size * x.numel())
        self._group._allgather_base(found, x.flatten()).wait()
        return found.view(self.shard.size, *x.shape)

    def broadcast(self, x: Tensor) -> None:
        self._group.broadcast([x], dist.BroadcastOptions()).wait()

    def abort(self) -> None:
        # NCCL may itself wait for the rank that has died, once a recorded step refers to it, and for ever.
        ending = threading.Thread(target=self._group.abort, name="abort of the group", daemon=True)
        ending.start()
        ending.join(ABORT_S)
