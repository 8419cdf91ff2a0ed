# promise: Memory files that were mapped, filled and unmapped again, the descriptor open or closed, count as memory.
# alone: runtime_error out_of_memory timeout
# right: correct runtime_error out_of_memory timeout deceptive
# tags: slow memory
# lacking: memory limit
import mmap
held, total = [], 0
try:
    while total < 2 * LIMIT_MB:
        file = os.memfd_create("m")
        os.truncate(file, 64 << 20)
        mapped = mmap.mmap(file, 64 << 20)
        for page in range(0, 64 << 20, 4096):
            mapped[page] = 1
        mapped.close()
        held.append(file)
        total += 64
except OSError:
    pass
if total >= 2 * LIMIT_MB:
    time.sleep(2)
    escaped(f"{total} MiB in memory files that were mapped")
for file in held:
    os.close(file)
