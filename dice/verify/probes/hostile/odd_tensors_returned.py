# promise: Whatever a candidate leaves as its output, no oracle ends of it, and it is not right.
# right: wrong runtime_error
# tags: slow messages
import json
import torch
wire = sys.modules["dice.verify.tensors.transport"]
names = sorted(name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype))
def write(value, folder, name, *rest, write=wire.write):
    with open(f"{folder}/{name}.bin", "wb") as file:
        file.write(bytes(range(256)) * 256)
    turn = time.time_ns() // 1000
    with open(f"{folder}/{name}.json", "w") as file:
        json.dump({"kind": "tensor", "dtype": names[turn % len(names)], "shape": [16, 100], "offset": 0}, file)
wire.write = write
