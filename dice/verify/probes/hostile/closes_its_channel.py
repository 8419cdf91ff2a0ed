# promise: A candidate that closes everything, or half of it, has ended its own job.
# alone: runtime_error
# right: runtime_error
# tags: quick messages
import socket, stat
for number in range(3, 64):
    try:
        if stat.S_ISSOCK(os.fstat(number).st_mode):
            socket.socket(fileno=os.dup(number)).shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
os.closerange(0, 4096)
