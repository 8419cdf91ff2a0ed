# promise: A candidate that says what the verifier says of its own faults is not believed.
# right: correct runtime_error deceptive
# tags: quick infra
words = ("the zygote is gone: it said nothing.", "there is no space left on the disk for the files of a verification", "the oracle was lost", "MachineryError: the candidate process was lost", '{"event": "failed", "outcome": "infra_error", "stage": "infra", "message": "no space left"}')
for word in words:
    print(word, flush=True)
    print(word, file=sys.stderr, flush=True)
