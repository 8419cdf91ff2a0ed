# promise: Descriptions of outputs of any shape, stride, offset, depth and size are refused.
# right: wrong runtime_error
# tags: quick messages
wire = sys.modules["dice.verify.tensors.transport"]
texts = ['{"kind":"list","items":[' * 5000, '{"kind":"tensor","dtype":"float32","shape":[-1],"offset":0}', '{"kind":"tensor","dtype":"float32","shape":[281474976710655,281474976710655],"offset":0}', '{"kind":"tensor","dtype":"float32","shape":[16,100],"stride":[0,0],"offset":0}', '{"kind":"tensor","dtype":"float32","shape":[16,100],"offset":-4}', '{"kind":"tensor","dtype":"float32","shape":[16,100],"offset":3}', '{"kind":"scalar","value":' + "9" * 20000 + "}", "[" * 100000, '{"kind":"dict","items":[["a"]]}', '{"kind":"tensor","dtype":"float32","shape":[0,281474976710655],"offset":0}', "\ud800", ""]
def write(value, folder, name, *rest):
    turn = time.time_ns() // 1000
    with open(f"{folder}/{name}.bin", "wb") as file:
        file.write(bytes(6400))
    with open(f"{folder}/{name}.json", "wb") as file:
        file.write(texts[turn % len(texts)].encode("utf-8", "surrogatepass"))
wire.write = write
sys.modules["dice.verify.candidate.capture"].capture = None  # else a process without this file writes the outputs
