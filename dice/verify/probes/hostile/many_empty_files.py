# promise: 100,000 empty files end their own job, and nothing of them is left.
# alone: runtime_error timeout
# right: correct runtime_error timeout deceptive
# tags: quick files
for number in range(100_000):
    try:
        os.close(os.open(f"f{number}", os.O_CREAT | os.O_WRONLY))
    except OSError:
        break
time.sleep(1)
