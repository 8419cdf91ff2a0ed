# promise: Shared memory of System V, message queues and semaphores are not there, or count as memory.
# alone: runtime_error out_of_memory timeout
# right: correct runtime_error out_of_memory timeout deceptive
# tags: slow memory
# lacking: memory limit, shared memory
libc.shmat.restype = ctypes.c_void_p
held, total = [], 0
while total < 2 * LIMIT_MB:
    segment = libc.shmget(0, ctypes.c_size_t(64 << 20), 0o1600)
    if segment < 0:
        break
    address = libc.shmat(segment, None, 0)
    ctypes.memset(address, 1, 64 << 20)
    libc.shmdt(ctypes.c_void_p(address))
    held.append(segment)
    total += 64
if total >= 2 * LIMIT_MB:
    time.sleep(2)
    escaped(f"{total} MiB in segments that are not attached")
for segment in held:
    libc.shmctl(segment, 0, None)
