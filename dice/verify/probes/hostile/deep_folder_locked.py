# promise: Deep folders whose rights were taken away on the way are removed.
# alone: runtime_error timeout
# right: correct runtime_error timeout deceptive
# tags: quick files
home = os.environ["HOME"]
os.mkdir("tree")
os.chdir("tree")
locked = []
for number in range(600):
    os.mkdir("a")
    with open("file", "wb") as file:
        file.write(b"x" * 100)
    if number % 50 == 0:
        locked.append(os.open(".", os.O_RDONLY))
    os.chdir("a")
for folder in reversed(locked):
    os.fchmod(folder, 0)
os.chdir(home)
os.chmod("tree", 0)
