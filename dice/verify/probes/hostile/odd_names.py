# promise: Files and folders with any name are removed.
# alone: runtime_error timeout
# right: correct runtime_error timeout deceptive
# tags: quick files
names = [b"n" * 255, b"new\nline", b"\xff\xfe no text", b"-rf", b"--", b" ", b"...", b"\x1b[2J", b"*", b"$(id)", b"\\", b"'\"", "\u202e".encode()]
names += [bytes([one]) for one in range(1, 256) if one not in b"./"]
names = list(dict.fromkeys(names))
here = os.getcwdb()
for depth in range(8):
    for name in names:
        os.close(os.open(name + b"f" if len(name) < 200 else name[:250] + b"file", os.O_CREAT | os.O_WRONLY))
        os.mkdir(name)
    os.chdir(names[depth])
os.chdir(here)
