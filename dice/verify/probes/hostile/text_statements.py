# promise: Text with thousands of nested statements ends no verifier.
# right: correct no_kernel load_error runtime_error deceptive out_of_memory compile_error
# tags: slow text
#repeat 3000|if 0: pass~|elif 0: pass~|
