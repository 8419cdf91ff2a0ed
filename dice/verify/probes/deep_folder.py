# promise: A folder 1,500 deep is removed, and ends nothing but its own job.
# alone: runtime_error
# right: correct runtime_error
# tags: quick files
for _ in range(1500):
    os.mkdir("a")
    os.chdir("a")
os.chdir(os.environ["HOME"])
