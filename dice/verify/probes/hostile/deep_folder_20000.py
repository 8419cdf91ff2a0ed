# promise: A folder 20,000 deep, made by going into each, is removed, and ends nothing but its own job.
# alone: runtime_error timeout
# right: correct runtime_error timeout deceptive
# tags: slow files
try:
    for number in range(20_000):
        os.mkdir(f"d{number}" if number % 1000 == 0 else "d")
        os.chdir(f"d{number}" if number % 1000 == 0 else "d")
except OSError:  # there is no room
    pass
os.chdir(os.environ["HOME"])
time.sleep(1)
