# promise: Processes whose parents have ended count against the limit of processes.
# alone: runtime_error out_of_memory timeout
# right: correct runtime_error out_of_memory timeout load_error
# tags: quick processes
# lacking: process limit
read, write = os.pipe()
os.set_inheritable(read, True)
script = "i=0; while [ $i -lt 100 ]; do sleep 60 <&- & i=$((i+1)); done; echo"
started = 0
try:
    for _ in range(12):
        os.posix_spawn("/bin/sh", ["sh", "-c", script], {"PATH": "/usr/bin:/bin"}, file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)], setsid=True)
        started += 100 * (os.read(read, 1) == b"\n")
except OSError:
    pass
if started >= 1200:
    time.sleep(2)
    escaped(f"{started} processes")
