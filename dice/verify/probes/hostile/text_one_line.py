# promise: A line of a million characters, and null bytes, are a verdict on the text.
# right: correct no_kernel load_error runtime_error deceptive out_of_memory timeout
# tags: slow text
#repeat 200000|x = [|1, @, |1]
