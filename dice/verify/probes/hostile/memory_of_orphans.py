# promise: Memory of processes whose parents have ended counts as well.
# alone: out_of_memory runtime_error timeout
# right: out_of_memory runtime_error load_error timeout deceptive
# tags: quick memory processes
# lacking: memory limit
read, write = os.pipe()
for _ in range(6):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            kept = b"x" * (2 * LIMIT_MB // 5 << 20)
            os.write(write, b"x")
            time.sleep(60)
            os._exit(len(kept) % 2)
        os._exit(0)
    os.wait()
while sum(1 for _ in range(6) if os.read(read, 1)) < 6:
    pass
time.sleep(3)
escaped(f"{6 * 2 * LIMIT_MB // 5} MiB in orphans")
