# promise: A candidate that raises what a lack of memory raises gets a verdict about the kernel.
# alone: out_of_memory runtime_error load_error
# tags: quick infra
raise MemoryError("the GPU has no memory left")
class ModelNew:
    pass
