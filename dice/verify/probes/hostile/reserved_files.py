# promise: Room that is reserved for files counts against the limit of the disk; files with holes take none.
# alone: runtime_error out_of_memory timeout
# right: correct runtime_error out_of_memory timeout deceptive
# tags: slow files
# lacking: disk limit
held = []
for number in range(20):
    file = os.open(f"sparse{number}", os.O_CREAT | os.O_RDWR)
    try:
        os.truncate(file, 1 << 44)
    except OSError:
        pass
    os.close(file)
total, size = 0, max(64, LIMIT_MB // 2)
try:
    while total < 2 * LIMIT_MB + 600:
        held.append(os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600))
        os.posix_fallocate(held[-1], 0, size << 20)
        total += size
except OSError:
    pass
if total >= 2 * LIMIT_MB + 600:
    time.sleep(2)
    escaped(f"{total} MiB reserved in files without names")
for file in held:
    os.close(file)
