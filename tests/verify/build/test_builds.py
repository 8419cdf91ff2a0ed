"""Building away from the candidate: who may write what, what hostile sources can read, and whose word counts."""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Options, Verifier
from dice.verify.build.cache import Cache
from dice.verify.build.service import Answer, BuildService
from dice.verify.build.sources import MAX_SOURCE_BYTES, Sources
from dice.verify.options import default_cache_dir
from dice.verify.sandbox import jail
from dice.verify.sandbox.process import MachineryError, Zygote
from tests.conftest import CASES, PATIENCE_S

RELU = Problem.from_file(CASES / "problems" / "relu.py")
RIGHT = Kernel.from_file(CASES / "right_relu.py")
SECRET = "a-secret-of-this-machine"
CPP = "torch::Tensor same(torch::Tensor x);"
CUDA = "torch::Tensor same(torch::Tensor x) { return x; }\n"
FUNCTIONS = (("same", "same"),)

Build = Callable[..., Answer]


def fresh(text: str) -> str:
    return f"{text}\n// {uuid.uuid4()}\n"


@pytest.mark.slow
def test_a_compiler_of_a_folder_that_no_candidate_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow, for all that builds share is made anew for it."""
    found = shutil.which("g++")
    assert found is not None
    (tmp_path / "compiler").symlink_to(found)
    monkeypatch.setenv("CXX", str(tmp_path / "compiler"))
    options = Options(cache_dir=tmp_path / "cache", timing=False)
    with Verifier(backend="emulated", options=options, cache=False) as verifier:
        verdict = verifier.verify(RELU, RIGHT)
    assert verdict.correct, verdict.message


@pytest.fixture
def service(emulated: Verifier) -> BuildService:
    return emulated._builds


@pytest.fixture
def build(emulated: Verifier, service: BuildService) -> Build:
    def build(cuda: str, cpp: str = CPP, timeout_s: float = PATIENCE_S, name: str = "ext", **more: Any) -> Answer:
        sources = Sources((cpp,), (cuda,), FUNCTIONS, **more)
        return service.build(emulated._get_zygote(), sources, name, timeout_s)

    return build


def test_built_once_and_found_again(build: Build) -> None:
    source = fresh(CUDA)
    first, second = build(source, name="one"), build(source, name="two")
    assert first.built is not None and second.built is not None
    assert (first.built.cached, second.built.cached) == (False, True)
    assert first.built.path == second.built.path and first.built.headers == "slim"
    assert sorted(path.name for path in first.built.path.parent.iterdir()) == [
        "extension.so",
        "foreign",
        "headers",
        "log",
        "sum",
        "variable",
        "word",
    ]


def test_a_name_decides_nothing_but_must_be_one(build: Build) -> None:
    answer = build(CUDA, name="../../evil")
    assert answer.kind == "compile_error" and "identifier" in answer.message


def test_too_large_sources_are_refused_unread(build: Build) -> None:
    answer = build("//" + "x" * MAX_SOURCE_BYTES)
    assert answer.kind == "compile_error" and "4 MB" in answer.message


def test_equal_builds_at_once_compile_once(
    build: Build, service: BuildService, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    ask = service._ask_builder
    monkeypatch.setattr(service, "_ask_builder", lambda *args: (asked.append(args), ask(*args))[1])
    for source, kind in ((fresh(CUDA), "built"), (fresh(CUDA + "nonsense"), "compile_error")):
        asked.clear()
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(build, [source] * 4))
        assert [answer.kind for answer in answers] == [kind] * 4 and len(asked) == 1


def test_no_more_builds_at_once_than_slots(
    emulated: Verifier, service: BuildService, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = BuildService("emulated", service.cache_dir, slots=1)
    single._prepared = service._prepared
    running, most = [0], [0]
    ask = single._ask_builder

    def watched(*args: Any) -> Any:
        running[0] += 1
        most[0] = max(most[0], running[0])
        try:
            return ask(*args)
        finally:
            running[0] -= 1

    monkeypatch.setattr(single, "_ask_builder", watched)
    zygote = emulated._get_zygote()
    sources = [Sources((CPP,), (fresh(CUDA),), FUNCTIONS) for _ in range(3)]
    threads = [threading.Thread(target=single.build, args=(zygote, item, "ext", 60)) for item in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_a_lost_builder_says_nothing_about_the_kernel(service: BuildService) -> None:
    zygote = Zygote()
    threading.Timer(1.5, os.kill, (zygote.pid, 9)).start()
    slow = Sources((CPP,), (fresh(_TEMPLATES + "int x = S<900000>::v;\n" + _LOOP + CUDA),), FUNCTIONS)
    with pytest.raises(MachineryError):
        for _ in range(20):
            service.build(zygote, replace(slow, cuda=(fresh(slow.cuda[0]),)), "ext", 60)
    zygote.close()


# ---- what hostile sources can read -------------------------------------------------------------------------------


@pytest.fixture(params=["namespaces", "process"])
def jailed(request: pytest.FixtureRequest, emulated: Verifier, zygotes: Callable[[], Zygote]) -> Build:
    """Builds in a zygote of a given tier, which is told of it when it starts."""
    with pytest.MonkeyPatch.context() as environment:
        if request.param == "process":
            if jail.landlock.version() == 0:
                pytest.skip("this kernel has no Landlock, so the lower tier hides nothing")
            environment.setenv(jail.WITHOUT, "namespaces")
        zygote = zygotes()
    return lambda cuda: emulated._builds.build(zygote, Sources((CPP,), (cuda,), FUNCTIONS), "ext", 60)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.h"
    path.write_text(f'"{SECRET}"')
    return path


@pytest.mark.parametrize(
    "attack",
    [
        'const char* text =\n#include "{path}"\n;\n',
        'asm(".pushsection .data\\n .incbin \\"{path}\\"\\n .popsection");\n',
        '#include "/proc/self/environ"\n',
        pytest.param('#include "{path}"\n', marks=pytest.mark.slow),
        pytest.param('#define GLUE(a, b) a##b\n__asm__(".inc" "bin \\"{path}\\"");\n', marks=pytest.mark.slow),
        pytest.param("#if __has_include(<{path}>)\n#error it can be seen\n#endif\n", marks=pytest.mark.slow),
        pytest.param('#include "/proc/1/cmdline"\n', marks=pytest.mark.slow),
        pytest.param('#include "/etc/passwd"\n', marks=pytest.mark.slow),
        pytest.param('#include "/etc/hostname"\n', marks=pytest.mark.slow),
    ],
)
def test_no_file_of_the_machine_is_read(jailed: Build, secret: Path, attack: str) -> None:
    answer = jailed(fresh(attack.replace("{path}", str(secret)) + CUDA))
    said = answer.message + answer.log + "".join(answer.lines)
    assert SECRET not in said and "root:" not in said and "it can be seen" not in said
    if answer.built is not None:
        assert SECRET.encode() not in answer.built.path.read_bytes()


def test_the_readable_secret_would_have_shown(secret: Path, tmp_path: Path) -> None:
    """The same source, compiled without a jail, holds the secret: the test above can fail."""
    from dice.verify.build.build import build as build_here

    source = fresh(f'const char* text =\n#include "{secret}"\n;\n' + CUDA)
    built = build_here(Sources((CPP,), (source,), FUNCTIONS), backend="emulated", cache_dir=default_cache_dir())
    assert SECRET.encode() in built.path.read_bytes()


# ---- what hostile sources can use up -----------------------------------------------------------------------------

_TEMPLATES = "template <int n> struct S { static const int v = S<n - 1>::v + S<n - 2>::v + n; };\n"
_LOOP = "constexpr long f() { long n = 0; while (true) ++n; return n; }\nstatic_assert(f());\n"


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("#include __FILE__\n", id="includes itself"),
        pytest.param(_TEMPLATES + "int x = S<900000>::v;\n", id="template recursion"),
        pytest.param("static char big[1L << 40] = {1};\nchar* get() { return big; }\n", id="terabyte array"),
        pytest.param('asm(".fill 1 << 33, 1, 1");\n', id="file of gigabytes"),
        pytest.param(
            "constexpr long f() { long n = 0; while (true) ++n; return n; }\nstatic_assert(f());\n", id="loop"
        ),
        pytest.param('#define A(x) x x x x x x x x\nint y = sizeof(A(A(A(A(A(A(A(A(A("0"))))))))));\n', id="macros"),
    ],
)
def test_a_bomb_is_a_verdict_on_the_kernel(build: Build, source: str) -> None:
    answer = build(fresh(source + CUDA), timeout_s=4)
    assert answer.kind in ("compile_error", "timeout", "link_error", "unsupported")
    assert build(fresh(CUDA)).kind == "built"


# ---- candidates --------------------------------------------------------------------------------------------------


def prefixed(code: str, kernel: Kernel = RIGHT) -> Kernel:
    return replace(kernel, source=code + "\n" + kernel.source)


@pytest.mark.parametrize("folder", ["extensions", "headers"])
def test_a_candidate_cannot_write_to_the_cache(emulated: Verifier, folder: str) -> None:
    place = emulated.options.cache_dir / folder / f"planted-{uuid.uuid4().hex}"
    code = f"import os\ntry:\n    os.mkdir({str(place)!r})\nexcept OSError:\n    pass\n"
    assert emulated.verify(RELU, prefixed(code)).correct
    assert not place.exists()


def test_builds_may_nest_in_threads_and_at_any_time(emulated: Verifier) -> None:
    source = f'''
import threading
import torch
from torch.utils.cpp_extension import load_inline

CUDA = """
__global__ void relu_kernel(const float* x, float* y, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] > 0.f ? x[i] : 0.f;
}}
torch::Tensor relu(torch::Tensor x) {{
  auto y = torch::empty_like(x);
  relu_kernel<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}}
// {uuid.uuid4()} """

def load(number):
    return load_inline("ext", "torch::Tensor relu(torch::Tensor x);", CUDA + "// %d" % number, functions=["relu"])

modules = {{}}
threads = [threading.Thread(target=lambda n=n: modules.update({{n: load(n)}})) for n in range(3)]
for thread in threads: thread.start()
at_import = load(0)
for thread in threads: thread.join()

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.made = load(3)
        self.late = None
        self.background = threading.Thread(target=self.build_late)
        self.background.start()
    def build_late(self):
        self.late = load(4)
    def forward(self, x):
        self.background.join()
        here = load(5)
        for module in (at_import, self.made, self.late, here, modules[1]):
            y = module.relu(x)
        return y
'''
    verdict = emulated.verify(RELU, Kernel(source))
    assert verdict.correct, verdict.message
    assert verdict.seconds["compile"] > 0


def test_a_swallowed_failure_is_remembered(emulated: Verifier) -> None:
    code = (
        "from torch.utils.cpp_extension import load_inline\n"
        "try:\n    load_inline('ext', '', 'this is no CUDA')\nexcept Exception as error:\n    print(error)\n"
        "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x): return torch.relu(x)\n"
        "# __global__ void k() {}\n"
    )
    source = RIGHT.source.split("class ModelNew")[0] + code
    verdict = emulated.verify(RELU, Kernel(source))
    assert verdict.outcome == "deceptive" and "build had failed" in verdict.message


def test_a_failure_wrapped_by_the_candidate_is_still_the_builders(emulated: Verifier) -> None:
    code = (
        "from torch.utils.cpp_extension import load_inline\n"
        "try:\n    load_inline('ext', '', 'int x = undeclared;')\n"
        "except Exception as error:\n    raise ValueError('something else') from error\n"
    )
    verdict = emulated.verify(RELU, prefixed(code))
    assert (verdict.outcome, verdict.stage) == ("compile_error", "compile")
    assert "undeclared" in verdict.message and verdict.errors


@pytest.mark.parametrize(
    "message",
    [
        {"event": "failed", "outcome": "infra_error", "stage": "infra", "message": "not me"},
        {"event": "failed", "outcome": "unsupported", "stage": "compile", "message": "not me"},
        {"event": "failed", "outcome": "compile_error", "stage": "compile", "message": "not me", "build": 7},
        {"event": "build", "request": 1, "name": "x", "sources": {"cpp": [1], "functions": []}},
        {"event": "build", "request": 1, "name": "x", "sources": ["nothing"]},
        {"event": "build", "name": None},
    ],
)
def test_forged_messages_decide_nothing_in_favour(emulated: Verifier, message: dict[str, Any]) -> None:
    code = (
        "import json, os, stat\n"
        "for fd in range(3, 64):\n"
        "    try:\n        if stat.S_ISSOCK(os.fstat(fd).st_mode): "
        f"os.write(fd, b{(__import__('json').dumps(message) + chr(10))!r})\n"
        "    except OSError: pass\n"
        "import time; time.sleep(30)\n"
    )
    verdict = emulated.verify(RELU, prefixed(code), replace(emulated.options, run_timeout_s=5))
    assert verdict.outcome in ("load_error", "runtime_error") and verdict.about_kernel


def test_no_scratch_is_left(build: Build, service: BuildService, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Cache(service.cache_dir / f"test-{uuid.uuid4().hex}")
    monkeypatch.setattr(service, "_cache", own)
    assert build(fresh(CUDA + "nonsense")).kind == "compile_error"
    assert build(fresh(CUDA)).kind == "built"
    assert len(os.listdir(own.folder)) == 2  # the entry, and the mark of the last clean-up
    shutil.rmtree(own.folder)
