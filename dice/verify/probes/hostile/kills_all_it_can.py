# promise: A candidate that signals every process it may reaches none but its own.
# alone: runtime_error
# tags: slow processes
# lacking: processes
import signal
for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGKILL):
    for target in [*range(2, 32768), -1]:
        if target not in (os.getpid(), os.getppid()):
            try:
                os.kill(target, number)
            except OSError:
                pass
