# promise: Exceptions of forward that look like faults of the verifier are faults of the kernel.
# right: runtime_error out_of_memory
# tags: slow infra
import errno
import torch
class MachineryError(OSError):
    pass
def call(self, *inputs):
    raise MachineryError(errno.ENOSPC, "the oracle was lost: No space left on device")
torch.nn.Module.__call__ = call
