# promise: Tensors of type uint2 among what a candidate has seen are no oracle's end.
# right: correct runtime_error deceptive wrong
# tags: slow messages
import json
import torch
wire = sys.modules["dice.verify.tensors.transport"]
names = ["uint2"]
def write(value, folder, name, *rest, write=wire.write):
    if name != "seen":
        return write(value, folder, name, *rest)
    with open(f"{folder}/seen.bin", "wb") as file:
        file.write(bytes(range(256)) * 256)
    turn = time.time_ns() // 1000
    one = names[turn % len(names)]
    items = [{"kind": "tensor", "dtype": dtype, "shape": shape, "offset": 0} for dtype in [one, *names] for shape in ([16], [4, 4], [0], [], [1] * 64)]
    with open(f"{folder}/seen.json", "w") as file:
        json.dump({"kind": "list", "items": items}, file)
wire.write = write
