# promise: A candidate that says there are no descriptors left is not believed.
# alone: load_error runtime_error out_of_memory
# tags: slow infra
import errno
raise OSError(errno.EMFILE, "Too many open files")
