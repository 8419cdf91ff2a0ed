# promise: Threads of processes whose parents have ended count as well.
# alone: runtime_error out_of_memory timeout
# right: correct runtime_error out_of_memory timeout load_error
# tags: slow processes
# lacking: process limit
import _thread
_thread.stack_size(32 << 10)
read, write = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        if os.fork():
            os._exit(0)
        os.setsid()
        stop = _thread.allocate_lock()
        stop.acquire()
        try:
            for _ in range(400):
                _thread.start_new_thread(stop.acquire, ())
            os.write(write, b"x")
        except (RuntimeError, MemoryError):
            os.write(write, b"-")
        time.sleep(60)
        os._exit(0)
    os.wait()
if b"".join(os.read(read, 1) for _ in range(8)) == b"x" * 8:
    time.sleep(2)
    escaped("3,200 threads in orphans")
