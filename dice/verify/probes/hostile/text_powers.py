# promise: Text of 3,000 links or more in one expression (powers) ends no verifier.
# right: correct no_kernel load_error runtime_error deceptive out_of_memory compile_error
# tags: slow text
#repeat 9000|x = 1|**1|
