"""How DICE starts Python: its own modules, and nothing that lies in a working directory, are imported.

A working directory may hold other people's files: kernels called `numpy.py`, or a folder that a candidate writes to.
Python would look there first (`-m`, `-c`, an empty or relative entry of PYTHONPATH). Every interpreter that DICE starts
is therefore started by `python_command` or `code_command`, with `environment`. The package is found by its exact
folder, so that nothing beside it can be imported instead of something else.

    python -P launch.py MODULE [ARGUMENT...]

This file is imported before `sys.path` is in order, so it imports only what every interpreter has loaded already.
"""

import os
import sys

PACKAGE = os.path.dirname(os.path.abspath(__file__))
_SEARCHED = ("PYTHONPATH", "LD_LIBRARY_PATH")  # an empty entry of these is the working directory


def python_command(module: str, *arguments: str) -> list[str]:
    """Run a module of DICE as `python -m` would."""
    return [sys.executable, "-P", os.path.join(PACKAGE, "launch.py"), module, *arguments]


def code_command(code: str, *arguments: str) -> list[str]:
    """Run a text that needs nothing of DICE."""
    return [sys.executable, "-P", "-c", code, *arguments]


def environment() -> dict[str, str]:
    """This process's environment for an interpreter, and those that it starts itself."""
    return safe_environment(dict(os.environ)) | {"PYTHONSAFEPATH": "1"}


def safe_environment(variables: dict[str, str]) -> dict[str, str]:
    """The variables, with no working directory among the folders that modules and libraries are looked for in."""
    kept = {name: value for name, value in variables.items() if name not in _SEARCHED}
    for name in _SEARCHED:
        folders = list(filter(_is_elsewhere, variables.get(name, "").split(os.pathsep)))
        if folders:
            kept[name] = os.pathsep.join(folders)
    return kept


def leave_working_directory() -> None:
    """Import nothing from the working directory from now on, here and in every interpreter that is started."""
    sys.path[:] = [folder for folder in sys.path if _is_elsewhere(folder) or _is_pythons(folder)]
    safe = environment()
    for name in _SEARCHED:
        if name in os.environ and name not in safe:
            del os.environ[name]
    os.environ.update(safe)


def _is_elsewhere(folder: str) -> bool:
    if not os.path.isabs(folder):
        return False
    try:
        return not os.path.samefile(folder, os.curdir)
    except OSError:  # there is none, or nobody may look
        return True


def _is_pythons(folder: str) -> bool:
    """Whether it is part of the installation, which somebody may well work in."""
    user = getattr(sys.modules.get("site"), "USER_SITE", None)
    places = [os.path.join(prefix, "lib") for prefix in (sys.prefix, sys.base_prefix)]
    return os.path.isabs(folder) and (folder == user or any(folder.startswith(place) for place in places))


def _main() -> None:
    leave_working_directory()
    import importlib.util
    import runpy

    spec = importlib.util.spec_from_file_location(
        "dice", os.path.join(PACKAGE, "__init__.py"), submodule_search_locations=[PACKAGE]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["dice"] = package
    spec.loader.exec_module(package)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
