# promise: Memory files whose last descriptor is on its way through a socket count against the limit of memory.
# alone: runtime_error out_of_memory timeout
# right: correct runtime_error out_of_memory timeout deceptive
# tags: quick memory
# lacking: memory limit
import socket
ours, theirs = socket.socketpair()
total = 0
try:
    while total < 2 * LIMIT_MB:
        file = os.memfd_create("m")
        for _ in range(64):
            total += os.write(file, b"x" * (1 << 20)) >> 20
        socket.send_fds(ours, [b"x"], [file])
        os.close(file)
except OSError:
    pass
if total >= 2 * LIMIT_MB:
    time.sleep(2)
    escaped(f"{total} MiB in memory files on their way through a socket")
