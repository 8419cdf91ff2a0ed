# promise: A candidate that says the disk is full is not believed: the verdict is about the kernel.
# alone: load_error runtime_error out_of_memory
# tags: quick infra
import errno
raise OSError(errno.ENOSPC, "No space left on device")
