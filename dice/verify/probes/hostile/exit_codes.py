# promise: No exit code of a candidate passes for a fault of the verifier's own.
# alone: runtime_error
# tags: quick infra
print("MachineryError: the zygote is gone", file=sys.stderr, flush=True)
os._exit(70)
