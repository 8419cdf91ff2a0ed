# promise: Whatever a candidate writes on its channel, its verdict is about it.
# alone: runtime_error timeout load_error wrong deceptive no_kernel out_of_memory compile_error
# right: runtime_error timeout load_error wrong deceptive no_kernel out_of_memory compile_error
# tags: quick messages
import json, stat
def channel():
    for number in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                return number
        except OSError:
            pass
def write(data):
    while data:
        data = data[os.write(channel(), data):]
odd = [None, True, -1, 0, 1 << 70, 1.5, "", "x", "\ud800", [], [[]], {}, {"a": {}}, [1, None], float("nan"), float("inf")]
fields = ("has_model", "loadable", "fewer", "failed", "launches", "damaged", "findings", "work", "changed", "aliased", "written", "on_cpu", "deterministic", "overwritten", "notice", "fault", "message", "outcome", "stage", "type", "lines", "build", "request", "times", "wrote")
for number, field in enumerate(fields):
    for event in ("noticed", "started", "no such event"):
        write(json.dumps({"event": event, field: odd[number % len(odd)]}).encode() + b"\n")
write(b"\xff\xfe\n[[[[\n{}\n\n" + b"[" * 100_000 + b"\n" + b"9" * 50_000 + b'\n{"event": ' + b"1" * 5_000 + b"}\n")
write(json.dumps({"event": "ran", "launches": {"relu_kernel": 5}, "work": {"elements": {"relu": -1 << 200}}}).encode() + b"\n")
write(json.dumps({"event": "loaded", "has_model": [0]}).encode() + b"\n")
for event in ("opened", "constructed", "ran", "gave back", "borrowed", "muted", "timed", "profiled"):
    write(json.dumps({"event": event} | {field: odd[len(event) % len(odd)] for field in fields if field not in ("fault",)}).encode() + b"\n")
