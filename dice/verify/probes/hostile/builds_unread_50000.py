# promise: Tens of thousands of builds that are asked for and never looked at end their own job, in time.
# alone: timeout runtime_error compile_error
# tags: slow builds
import json, socket, stat
def channel():
    for number in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                return number
        except OSError:
            pass
sources = {"cpp": ["#error no"], "cuda": [], "functions": [], "cflags": [], "cuda_cflags": [], "implicit_headers": True}
for number in range(50_000):
    line = json.dumps({"event": "build", "request": number, "name": "k", "sources": sources}).encode() + b"\n"
    while line:
        line = line[os.write(channel(), line):]
time.sleep(60)
