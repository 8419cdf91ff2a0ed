# promise: Exceptions of forward that look like faults of the verifier are faults of the kernel.
# alone: runtime_error out_of_memory
# tags: quick infra
import errno
import torch
cuda_source = "__global__ void k(float* y) {}"
class MachineryError(OSError):
    pass
class ModelNew(torch.nn.Module):
    def forward(self, x):
        raise MachineryError(errno.ENOSPC, "the oracle was lost: No space left on device")
