# promise: Nothing can be written, renamed, linked or removed outside of the job's own folders.
# alone: runtime_error timeout
# right: correct runtime_error deceptive timeout
# tags: quick files
# lacking: writes
own = (os.getcwd(), "/tmp", "/dev/shm", "/proc", "/dev/fd")
torch_at = os.path.dirname(sys.modules["torch"].__file__)
dice_at = os.path.dirname(sys.modules["dice"].__file__)
places = ["/", "/usr", "/usr/lib", "/etc", "/var/tmp", "/run", "/var/lib", "/home", "/root", "/dev", "/sys", "/opt", "/mnt", sys.prefix, sys.base_prefix, torch_at, dice_at, os.path.dirname(dice_at), os.getcwd() + "/..", os.getcwd() + "/../inputs", os.getcwd() + "/../.."]
with open("/proc/self/mounts") as file:
    places += [line.split()[1] for line in file]
private = {os.stat(path).st_dev for path in ("/tmp", "/dev/shm") if os.getpid() < 10 and os.path.exists(path)}
for place in places:
    if os.path.isdir(place) and os.stat(place).st_dev in private:  # in a namespace of its own, these are its own too
        continue
    if os.path.realpath(place).startswith(own) and not place.endswith(("..", "inputs")):
        continue
    for deed in ("create", "nameless", "folder", "link"):
        path = f"{place}/{MARK}"
        try:
            if deed == "create":
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600))
                os.unlink(path)
            elif deed == "nameless":
                os.close(os.open(place, os.O_TMPFILE | os.O_WRONLY, 0o600))
            elif deed == "folder":
                os.mkdir(path)
                os.rmdir(path)
            else:
                os.symlink("/", path)
                os.unlink(path)
        except OSError:
            continue
        escaped(f"{deed} in {place}")
for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches", "/sys/kernel/uevent_helper", "/etc/passwd", sys.modules["torch"].__file__, sys.modules["dice"].__file__, sys.executable):
    try:
        os.close(os.open(path, os.O_WRONLY))
    except OSError:
        continue
    escaped(f"{path} is open for writing")
