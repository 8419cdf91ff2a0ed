# promise: 12,000 threads in several processes are refused, or end their own job.
# alone: runtime_error out_of_memory timeout
# tags: slow processes
# lacking: process limit
import _thread
_thread.stack_size(32 << 10)
read, write = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        stop = _thread.allocate_lock()
        stop.acquire()
        try:
            for _ in range(3_000):
                _thread.start_new_thread(stop.acquire, ())
            os.write(write, b"x")
        except (RuntimeError, MemoryError):
            os.write(write, b"-")
        time.sleep(60)
if b"".join(os.read(read, 1) for _ in range(4)) == b"xxxx":
    time.sleep(2)
    escaped("12,000 threads")
