# promise: Memory counts together, however many processes it is spread over.
# alone: out_of_memory runtime_error timeout
# right: out_of_memory runtime_error load_error timeout deceptive
# tags: slow memory
for _ in range(40):
    if os.fork() == 0:
        kept = b"x" * (LIMIT_MB // 16 << 20)
        time.sleep(60)
        os._exit(len(kept) % 2)
time.sleep(4)
escaped(f"{40 * LIMIT_MB // 16} MiB in 40 processes")
