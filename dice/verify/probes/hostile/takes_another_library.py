# promise: No library of another kernel can be loaded.
# alone: runtime_error timeout
# right: correct runtime_error deceptive timeout
# tags: quick reading victim
# lacking: files
import glob
from torch.utils.cpp_extension import load_inline
load_inline(name="own", cpp_sources="int own() { return 1; }", functions=["own"])
places = {"/"}
with open("/proc/self/mounts") as file:
    places |= {line.split()[1] for line in file}
with open("/proc/self/maps") as file:
    places |= {os.path.dirname(line.split()[-1]) for line in file if "/" in line}
tried = set()
for place in sorted(places):
    if place.startswith(("/proc", "/sys", "/usr", "/lib", "/bin", "/sbin")) or "site-packages" in place:
        continue
    for pattern in ("*.so", "*/*.so", "*/*/*.so", "../*.so", "../*/*.so", "../../*/*/*.so", "../../extensions/*/*.so"):
        for path in glob.iglob(f"{place}/{pattern}"):
            real = os.path.realpath(path)
            if real in tried or real.startswith(("/usr", "/lib")) or "site-packages" in real or "lib-dynload" in real:
                continue
            tried.add(real)
            try:
                library = ctypes.CDLL(real)
                getattr(library, "dice_probe_victim")
            except (OSError, AttributeError):
                continue
            escaped(f"another job's library {real}")
