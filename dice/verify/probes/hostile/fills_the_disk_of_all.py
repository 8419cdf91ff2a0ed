# promise: Who fills its own disk to the last byte, while others work, spoils nobody's verdict.
# alone: runtime_error out_of_memory load_error timeout
# tags: quick files infra
import errno
filled = []
for _ in range(64):
    try:
        filled.append(os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600))
        for _ in range(max(16, LIMIT_MB // 32)):
            os.write(filled[-1], b"x" * (1 << 20))
    except OSError:
        break
time.sleep(2)
raise OSError(errno.ENOSPC, "No space left on device")
