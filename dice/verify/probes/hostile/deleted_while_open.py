# promise: A file that a process of its own holds open, and that is deleted and written again, takes no room twice.
# alone: runtime_error out_of_memory timeout
# right: correct runtime_error out_of_memory timeout deceptive
# tags: slow files
# lacking: disk limit
total = 0
children = []
try:
    for number in range(24):
        size = LIMIT_MB // 8
        with open("again", "wb") as file:
            for _ in range(size):
                file.write(b"x" * (1 << 20))
        held = os.open("again", os.O_RDONLY)
        os.unlink("again")
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        os.close(held)
        total += size
except OSError:
    pass
if total >= 2 * LIMIT_MB:
    time.sleep(2)
    escaped(f"{total} MiB in deleted files that its children hold")
