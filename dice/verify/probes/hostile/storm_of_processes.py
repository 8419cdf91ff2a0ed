# promise: Processes that start others and end at once are ended with their job, and leave none behind.
# alone: runtime_error timeout
# tags: slow processes
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                if os.fork() != 0:
                    os._exit(0)
                os.setsid()
            except OSError:
                time.sleep(0.01)
        os._exit(0)
time.sleep(3)
