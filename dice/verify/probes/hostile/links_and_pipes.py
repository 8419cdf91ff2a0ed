# promise: Links, also in circles and to places outside, pipes and sockets are removed, and none is followed.
# alone: runtime_error timeout
# right: correct runtime_error timeout deceptive
# tags: quick files
import socket
os.symlink("loop", "loop")
os.symlink("two", "one")
os.symlink("one", "two")
os.mkdir("folder")
for number, target in enumerate(("/", "/dev/shm", "/proc/self/fd", "..", ".", "../folder", "/dev/zero", "/nowhere")):
    os.symlink(target, f"folder/to{number}")
for number in range(50):
    os.mkfifo(f"pipe{number}")
    socket.socket(socket.AF_UNIX).bind(f"socket{number}")
with open("file", "wb") as file:
    file.write(b"x")
for number in range(100):
    os.link("file", f"link{number}")
