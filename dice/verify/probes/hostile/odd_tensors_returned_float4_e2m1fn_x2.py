# promise: An output of type float4_e2m1fn_x2 is refused.
# right: wrong runtime_error
# tags: quick messages
import json
import torch
wire = sys.modules["dice.verify.tensors.transport"]
names = ["float4_e2m1fn_x2"]
def write(value, folder, name, *rest, write=wire.write):
    with open(f"{folder}/{name}.bin", "wb") as file:
        file.write(bytes(range(256)) * 256)
    turn = time.time_ns() // 1000
    with open(f"{folder}/{name}.json", "w") as file:
        json.dump({"kind": "tensor", "dtype": names[turn % len(names)], "shape": [16, 100], "offset": 0}, file)
wire.write = write
