# promise: A request for a build that load_inline never makes ends its own job.
# alone: runtime_error timeout
# tags: quick builds messages
import json, stat
def channel():
    for number in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                return number
        except OSError:
            pass
good = {"cpp": ["int f() { return 1; }"], "cuda": [], "functions": [["f", "f"]], "cflags": [], "cuda_cflags": [], "implicit_headers": True}
odd = [None, 0, [], {}, "x", [[]], [["f"]], [["f", 1]], {"f": "f"}, ["\ud800"], ["\0"], True, 1e400, [None]]
for name in (None, 1, "", "a b", "../x", "\ud800", "x" * 100_000, ["k"]):
    os.write(channel(), json.dumps({"event": "build", "request": name, "name": name, "sources": good}).encode() + b"\n")
for key in good:
    for value in odd:
        line = json.dumps({"event": "build", "request": [], "name": "k", "sources": good | {key: value}}).encode() + b"\n"
        os.write(channel(), line)
time.sleep(1)
