# promise: A candidate that raises what a lack of memory raises gets a verdict about the kernel.
# alone: out_of_memory runtime_error load_error
# tags: slow infra
raise MemoryError("the GPU has no memory left")
