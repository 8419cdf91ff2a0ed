# promise: A chain of thousands of assignments, of which the last is a build, is followed in a job's time.
# right: correct no_kernel load_error runtime_error deceptive timeout out_of_memory
# tags: quick text
if 0:
    from torch.utils.cpp_extension import load_inline
#repeat 3000||    a@ = a@+~|    a3000 = load_inline()
