# promise: A folder 1,500 deep is removed, and ends nothing but its own job.
# alone: runtime_error timeout
# right: correct runtime_error timeout deceptive
# tags: quick files
for _ in range(1500):
    os.mkdir("a")
    os.chdir("a")
os.chdir(os.environ["HOME"])
