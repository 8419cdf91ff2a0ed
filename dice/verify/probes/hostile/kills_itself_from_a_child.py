# promise: A candidate that its own child kills has ended by its own fault.
# alone: runtime_error
# tags: slow processes
parent = os.getpid()
if os.fork() == 0:
    os.setsid()
    time.sleep(0.2)
    os.kill(parent, 9)
    os._exit(0)
time.sleep(5)
