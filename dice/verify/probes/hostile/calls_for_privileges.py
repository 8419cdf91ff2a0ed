# promise: System calls that lead out of the sandbox are refused.
# alone: runtime_error
# right: correct runtime_error deceptive
# tags: quick processes
# lacking: system calls
calls = {"ptrace": (101, 0), "mount": (165, 0), "unshare": (272, 0x10000000), "unshare mnt": (272, 0x20000), "setns": (308, 0), "bpf": (321, 0), "keyctl": (250, 0), "add_key": (248, 0), "perf_event_open": (298, 0), "userfaultfd": (323, 1), "io_uring_setup": (425, 0), "fsopen": (430, 0), "open_tree": (428, 0), "init_module": (175, 0), "kexec_load": (246, 0), "swapon": (167, 0), "acct": (163, 0), "process_vm_readv": (310, 0), "kcmp": (312, 0), "open_by_handle_at": (304, 0), "chroot": (161, 0), "pivot_root": (155, 0)}
if os.uname().machine == "x86_64":
    for name, (number, argument) in calls.items():
        ctypes.set_errno(0)
        if libc.syscall(number, argument, 0, 0, 0, 0) >= 0 or ctypes.get_errno() not in (1, 38):
            escaped(f"{name}: errno {ctypes.get_errno()}")
if libc.prctl(7, 0, 0, 0, 0) > 0:  # PR_GET_KEEPCAPS
    escaped("it keeps capabilities")
for name in ("setuid", "setgid", "setgroups"):
    try:
        if name == "setgroups":
            os.setgroups([0])
        else:
            getattr(os, name)(12345)
    except OSError:
        continue
    escaped(name)
