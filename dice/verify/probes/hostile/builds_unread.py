# promise: Answers that a candidate does not read cost its own time, and no more than that.
# alone: timeout runtime_error compile_error
# tags: quick builds
import json, stat
def channel():
    for number in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                return number
        except OSError:
            pass
text = "\n".join(f'#error "{"x" * 200} {number}"' for number in range(400))
for number in range(24):
    sources = {"cpp": [text], "cuda": [], "functions": [], "cflags": [], "cuda_cflags": [], "implicit_headers": True}
    line = json.dumps({"event": "build", "request": number, "name": "k", "sources": sources}).encode() + b"\n"
    while line:
        line = line[os.write(channel(), line):]
time.sleep(100)
