# promise: What waits in the buffers of sockets and pipes counts against the limit of memory, or is little.
# alone: runtime_error out_of_memory timeout
# right: correct runtime_error out_of_memory timeout deceptive
# tags: quick memory
# lacking: memory limit
import fcntl, socket
held, total = [b"x" * (1 << 20) for _ in range(LIMIT_MB * 3 // 4)], LIMIT_MB * 3 // 4 << 20
try:
    while total < 3 * LIMIT_MB // 2 << 20:
        pair = socket.socketpair()
        held += pair
        for end in pair:
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
            try:
                while True:
                    total += end.send(b"x" * (1 << 16))
            except BlockingIOError:
                pass
        read, write = os.pipe()
        held += [os.fdopen(read, "rb", 0), os.fdopen(write, "wb", 0)]
        os.set_blocking(write, False)
        try:
            fcntl.fcntl(write, 1031, 1 << 20)
        except OSError:
            pass
        try:
            while True:
                total += os.write(write, b"x" * (1 << 16))
        except BlockingIOError:
            pass
except OSError:
    pass
if total >= 3 * LIMIT_MB // 2 << 20:
    time.sleep(2)
    escaped(f"{total >> 20} MiB in memory and in buffers")
del held
