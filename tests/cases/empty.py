# problem: relu
# expect: no_kernel extract


