"""The CUDA side of a pair: kernel bodies and the files that hold them."""
