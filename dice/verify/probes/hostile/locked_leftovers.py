# promise: Files below folders without rights, and a folder of outputs without rights, are removed.
# alone: runtime_error timeout
# right: correct runtime_error load_error timeout deceptive
# tags: quick files
for number in range(4):
    os.mkdir(f"locked{number}")
    with open(f"locked{number}/file", "wb") as file:
        file.write(b"x" * (8 << 20))
    os.chmod(f"locked{number}/file", 0)
    os.chmod(f"locked{number}", 0)
os.chmod(".", 0)
