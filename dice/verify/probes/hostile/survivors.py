# promise: No process outlives its job: not in sessions of its own, without signals, with ended parents, off all leads.
# alone: runtime_error
# right: correct runtime_error
# tags: quick processes
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
for _ in range(3):
    if os.fork() == 0:
        for _ in range(3):
            os.setsid()
            libc.prctl(1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG
            libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE
            libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
            if os.fork():
                os._exit(0)
        os.closerange(3, 4096)
        os.chdir("/")
        while True:
            time.sleep(1)
time.sleep(0.3)
