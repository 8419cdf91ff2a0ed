# promise: A candidate without a free descriptor fails by itself.
# alone: runtime_error
# right: correct runtime_error load_error
# tags: slow descriptors
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
time.sleep(0.5)
