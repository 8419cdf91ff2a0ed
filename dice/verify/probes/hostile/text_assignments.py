# promise: Thousands of assignments are looked at in no more than the time of a job.
# right: correct no_kernel load_error runtime_error deceptive out_of_memory timeout
# tags: slow text
if 0:
    import torch
    from torch.utils.cpp_extension import load_inline
#repeat 3000|    a = b = 1~|    a@ = a@ + 1; b@ = a@; a = b@~|
#repeat 6000|    a = 1~|    x@ = y@ = load_inline~|
