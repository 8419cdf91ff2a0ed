# promise: Threads count: a candidate cannot take the machine's process ids.
# alone: runtime_error out_of_memory timeout
# right: correct runtime_error out_of_memory timeout load_error
# tags: quick processes
# lacking: process limit
import _thread
_thread.stack_size(32 << 10)
stop, started = _thread.allocate_lock(), 0
stop.acquire()
def wait():
    with stop:
        pass
try:
    while started < 3_000:
        _thread.start_new_thread(wait, ())
        started += 1
except (RuntimeError, MemoryError):
    pass
if started >= 3_000:
    time.sleep(2)
    escaped(f"{started} threads")
stop.release()
time.sleep(0.5)
