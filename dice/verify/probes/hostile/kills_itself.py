# promise: A candidate that kills itself has ended by its own fault.
# alone: runtime_error
# tags: quick processes
os.kill(os.getpid(), 9)
time.sleep(5)
