# promise: Shared memory that only a process touched which has ended counts against the limit of memory.
# alone: runtime_error out_of_memory timeout
# right: correct runtime_error out_of_memory timeout deceptive
# tags: quick memory
# lacking: memory limit
import mmap
held, total, step = [], 0, LIMIT_MB // 4
while total < 2 * LIMIT_MB:
    held.append(mmap.mmap(-1, step << 20))
    child = os.fork()
    if child == 0:
        for page in range(0, step << 20, 4096):
            held[-1][page] = 1
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        break
    total += step
if total >= 2 * LIMIT_MB:
    time.sleep(2)
    escaped(f"{total} MiB of shared memory")
for one in held:
    one.close()
