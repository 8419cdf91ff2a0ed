# promise: Nested conditional expressions in a text end no verifier.
# right: correct no_kernel load_error runtime_error deceptive out_of_memory
# tags: quick text
#repeat 340|x = 1| if 1 else 1|
