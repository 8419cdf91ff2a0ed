# promise: Text that is nested deeper than Python reads it ends no verifier.
# right: correct no_kernel load_error runtime_error deceptive out_of_memory compile_error
# tags: slow text
#repeat 6000|x = 1| + 1|
