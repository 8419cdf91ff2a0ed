"""Ray as few small files, for a machine that reaches no package index: what clusters of ours need of it, and no more.

    python benchmarks/pack_ray.py FOLDER [--python 3.12] [--piece 16]     here; takes a minute or two
    cat FOLDER/ray.tar.xz.* | tar -xJ -C THERE                            where that Python and the same processor are
    PYTHONPATH=THERE ...

Ray and what it depends on are fetched as wheels. Left out are Ray's libraries (data, tune, ...), Java, and the
dashboard's page; programs lose their symbols. Where Python is this one's, all is unpacked and tried out in the end.
"""

from __future__ import annotations

import argparse
import io
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import ray

LEFT_OUT = re.compile(
    r"ray/(jars|rllib|data|serve|tune|llm|train|cpp|dashboard/client)/"
    r"|__pycache__|\.pyi$|/tests?/|\.dist-info/(?!METADATA|RECORD)"
)
PROGRAMS = re.compile(r"ray/_raylet\.so$|ray/core/src/ray/(raylet/raylet|gcs/gcs_server)$")
PRESET = 9 | lzma.PRESET_EXTREME
TRIAL = """
import ray, sys
assert ray.__file__.startswith(sys.argv[1]), ray.__file__
ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
assert ray.get(ray.remote(lambda: 6 * 7).remote(), timeout=300) == 42
ray.shutdown()
"""


def unpack(python: str, there: Path) -> None:
    """The wheels of Ray, in this one's version, and of what it depends on."""
    with tempfile.TemporaryDirectory() as wheels:
        command = [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "--python-version", python]
        subprocess.run([*command, "-d", wheels, f"ray=={ray.__version__}"], check=True)
        for wheel in Path(wheels).glob("*.whl"):
            with zipfile.ZipFile(wheel) as file:
                file.extractall(there)


def pack(folder: Path, python: str, piece: int) -> int:
    """Bytes of all pieces."""
    whole = io.BytesIO()
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(fileobj=whole, mode="w") as tar:
        there = Path(scratch)
        unpack(python, there)
        for path in sorted(there.rglob("*")):
            name = str(path.relative_to(there))
            if path.is_dir() or LEFT_OUT.search(name):
                continue
            if PROGRAMS.search(name):
                path.chmod(0o755)
                if shutil.which("strip"):
                    subprocess.run(["strip", "--strip-unneeded", path], check=True)
            tar.add(path, name)
    data = lzma.compress(whole.getvalue(), preset=PRESET)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("ray.tar.xz.*"):
        old.unlink()
    for number, begin in enumerate(range(0, len(data), piece)):
        (folder / f"ray.tar.xz.{number:02}").write_bytes(data[begin : begin + piece])
    return len(data)


def try_out(folder: Path) -> None:
    """Unpack all and run a task there."""
    with tempfile.TemporaryDirectory(prefix="ray_", dir="/tmp") as there:
        data = b"".join(one.read_bytes() for one in sorted(folder.glob("ray.tar.xz.*")))
        with tarfile.open(fileobj=io.BytesIO(lzma.decompress(data))) as tar:
            tar.extractall(there, filter="data")
        own = {"PYTHONPATH": there, "RAY_TMPDIR": there, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
        subprocess.run([sys.executable, "-P", "-c", TRIAL, there], env=os.environ | own, check=True, cwd="/")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument("--python", default=here, help="of the machine that has no index")
    parser.add_argument("--piece", type=int, default=16, help="megabytes of a file at most")
    args = parser.parse_args()
    size = pack(args.folder, args.python, args.piece << 20)
    if args.python == here:
        try_out(args.folder)
    count = len(list(args.folder.glob("ray.tar.xz.*")))
    print(f"{size / 1e6:.1f} MB in {count} files, {'tried out' if args.python == here else 'not tried'}.")


if __name__ == "__main__":
    main()
