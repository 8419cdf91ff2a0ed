# promise: Thousands of functions, classes and strings of CUDA are looked at in no more than the time of a job.
# right: correct no_kernel load_error runtime_error deceptive out_of_memory timeout
# tags: slow text
#repeat 3000|~|def f@(x): return f@(x)~|
#repeat 2000|~|class C@: forward = lambda self, x: x~|
#repeat 3000|~|s@ = "__global__ void k@(float* x) {}"~|
