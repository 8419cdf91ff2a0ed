# promise: Deep folders in the shared folders, and moved under one another, end nothing but their own job.
# alone: runtime_error timeout
# right: correct runtime_error timeout deceptive
# tags: slow files
for place in ("/tmp", "/dev/shm", os.environ["HOME"]):
    try:
        os.chdir(place)
        for chain in ("a", "b", "c"):
            os.mkdir(f"{place}/{chain}")
            os.chdir(f"{place}/{chain}")
            for _ in range(700):
                os.mkdir("n" * 50)
                os.chdir("n" * 50)
            if chain != "a":
                os.rename(f"{place}/{chr(ord(chain) - 1)}", "moved")
    except OSError:
        pass
os.chdir(os.environ["HOME"])
