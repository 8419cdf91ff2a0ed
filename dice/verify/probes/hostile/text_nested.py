# promise: Text that is nested as deep as Python reads it ends no verifier.
# right: correct no_kernel load_error runtime_error deceptive out_of_memory
# tags: slow text
#repeat 90|a = []~if 0: a = a|[a|
#repeat 90||]|
#repeat 900|b = |-|1
#repeat 900|c = |not |1
#repeat 900|d = 1| + 1|
#repeat 300|e = lambda: 1~if 0: e = e|()|
#repeat 300|if 0: e = e|.f|
#repeat 300|if 0: e = e|[0]|
#repeat 80|g = |lambda: |1
