# promise: Memory that is taken at once ends its own job only, and soon.
# alone: out_of_memory runtime_error timeout
# right: out_of_memory runtime_error load_error timeout deceptive
# tags: quick memory
import mmap
size = 4 * LIMIT_MB << 20
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
time.sleep(2)
escaped(f"{size >> 20} MiB of memory")
