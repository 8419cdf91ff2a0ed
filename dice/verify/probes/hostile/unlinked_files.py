# promise: Files without a name count against the limit of the disk as those with one do.
# alone: runtime_error out_of_memory timeout
# right: correct runtime_error out_of_memory timeout deceptive
# tags: quick files
# lacking: disk limit
held = []
total = 0
for place in (".", "/tmp", "/dev/shm"):
    try:
        while total < 2 * LIMIT_MB + 600:
            file = os.open(f"{place}/f", os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o600)
            os.unlink(f"{place}/f")
            held.append(file)
            for _ in range(16):
                total += os.write(file, b"x" * (1 << 20)) >> 20
    except OSError:
        pass
if total >= 2 * LIMIT_MB + 600:
    time.sleep(2)
    escaped(f"{total} MiB in files without names")
for file in held:
    os.close(file)
