# promise: Descriptors on their way through sockets are limited so that others can go on.
# alone: runtime_error
# right: correct runtime_error
# tags: quick descriptors
import socket
held, sent = [], 0
file = os.open("/dev/null", os.O_RDONLY)
try:
    while sent < 20_000:
        pair = socket.socketpair()
        held.append(pair)
        for _ in range(4):
            socket.send_fds(pair[0], [b"x"], [file] * 250)
            sent += 250
except OSError:
    pass
time.sleep(1.5)
