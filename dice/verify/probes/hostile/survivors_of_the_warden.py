# promise: No process outlives its job where the process that guards it is attacked from all sides.
# alone: runtime_error timeout
# tags: quick processes files
import signal
for _ in range(4):
    if os.fork() == 0:
        libc.prctl(1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG
        libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork():
            os._exit(0)
        while True:
            time.sleep(1)
for number in range(1500):
    os.mkdir("a")
    os.chdir("a")
time.sleep(1)
parent = os.getppid()
for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
    for target in (parent, 1, -1):
        try:
            os.kill(target, number)
        except OSError:
            pass
time.sleep(1)
