# promise: Memory files that no process maps count against the limit of memory, or cannot be made.
# alone: runtime_error out_of_memory timeout
# right: correct runtime_error out_of_memory timeout deceptive
# tags: quick memory
# lacking: memory limit
held, total = [], 0
try:
    while total < 2 * LIMIT_MB:
        held.append(os.memfd_create("m"))
        for _ in range(64):
            total += os.write(held[-1], b"x" * (1 << 20)) >> 20
except OSError:
    pass
if total >= 2 * LIMIT_MB:
    time.sleep(2)
    escaped(f"{total} MiB in memory files that are not mapped")
for file in held:
    os.close(file)
