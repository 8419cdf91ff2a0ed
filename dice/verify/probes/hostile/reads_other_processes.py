# promise: Of other processes nothing is to be seen: no command line, environment, memory, folder or open file.
# alone: runtime_error timeout
# right: correct runtime_error deceptive timeout
# tags: quick reading
# lacking: processes, files, memory of others
own = {os.getpid(), os.getppid(), 1}
for number in sorted({int(name) for name in os.listdir("/proc") if name.isdigit()} | set(range(1, 32768))):
    if number in own or not os.path.exists(f"/proc/{number}/stat"):
        continue
    for name in ("cmdline", "environ", "maps", "mem", "status", "stat", "root", "cwd", "exe", "fd", "io"):
        path = f"/proc/{number}/{name}"
        try:
            if name in ("root", "cwd", "exe"):
                found = os.readlink(path)
            elif name == "fd":
                found = os.listdir(path)
            else:
                with open(path, "rb") as file:
                    found = name == "mem" or file.read(64)
        except OSError:
            continue
        with open(f"/proc/{number}/stat") as file:
            if int(file.read().rpartition(") ")[2].split()[1]) in own:
                continue
        escaped(f"{path}")
for name in ("environ", "mem", "maps", "fd"):
    try:
        if name == "fd":
            os.listdir("/proc/1/fd")
        else:
            with open(f"/proc/1/{name}", "rb") as file:
                file.read(1)
    except OSError:
        continue
    if os.getpid() != 1 and name in ("mem", "environ"):
        with open("/proc/1/comm") as file:
            init = file.read().strip()
        if not init.startswith(("python", MARK[:4])):
            escaped(f"/proc/1/{name} of {init}")
