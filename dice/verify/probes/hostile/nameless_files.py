# promise: Files that never had a name count against the limit of the disk.
# alone: runtime_error out_of_memory timeout
# right: correct runtime_error out_of_memory timeout deceptive
# tags: slow files
# lacking: disk limit
held = []
total = 0
for place in (".", "/tmp", "/dev/shm"):
    try:
        while total < 2 * LIMIT_MB + 600:
            held.append(os.open(place, os.O_TMPFILE | os.O_RDWR, 0o600))
            for _ in range(16):
                total += os.write(held[-1], b"x" * (1 << 20)) >> 20
    except OSError:
        pass
if total >= 2 * LIMIT_MB + 600:
    time.sleep(2)
    escaped(f"{total} MiB in files that never had a name")
for file in held:
    os.close(file)
