# promise: A candidate that stops itself, or what guards it, runs out of its own time and leaves nothing.
# alone: timeout runtime_error
# tags: slow processes
import signal
if os.fork() == 0:
    time.sleep(60)
try:
    os.kill(os.getppid(), signal.SIGSTOP)
except OSError:
    pass
os.kill(os.getpid(), signal.SIGSTOP)
