# promise: Text of 3,000 links or more in one expression (conditionals deeper) ends no verifier.
# right: correct no_kernel load_error runtime_error deceptive out_of_memory compile_error
# tags: quick text
#repeat 9000|x = 1| if 1 else 1|
