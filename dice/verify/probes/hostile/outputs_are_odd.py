# promise: Outputs that are pipes, folders, links or devices are not waited for, and not followed.
# right: correct runtime_error wrong timeout deceptive
# tags: slow files
import threading
def spoil():
    kinds = (os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path), lambda path: os.symlink(path, path))
    for number in range(3000):
        for name in ("output.json", "output.bin", "seen.json", "seen.bin"):
            try:
                kinds[number % 4](f"odd{number}")
                os.replace(f"odd{number}", name)
            except OSError:
                pass
        time.sleep(0.001)
threading.Thread(target=spoil, daemon=True).start()
