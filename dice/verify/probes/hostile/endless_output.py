# promise: Output without end is read and forgotten.
# alone: runtime_error
# right: correct runtime_error
# tags: quick messages
line = b"output without end\n" * 4096
for number in range(3000):
    os.write(1 + number % 2, line)
os.write(2, b"\x1b[2J\xff\xfe" * 1000)
