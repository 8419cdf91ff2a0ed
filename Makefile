# Two commands do everything: `make demo` and `make test`. Each sets up .venv first; a second run starts at once.
# Paths are relative throughout, so the checkout may lie in a folder of any name.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
PY := .venv/bin/python

.PHONY: demo test lint clean

demo: .venv/.ready  ## write, compile, run and prove three kernels
	@$(PY) -m dice generate examples/activation_chain.py examples/softmax.py examples/matmul.py -o kernels

test: .venv/.ready  ## the whole test suite, with lint and types
	@$(PY) -m pytest -q -n 2 --dist loadgroup

lint: .venv/.ready  ## format and fix what can be fixed, then check
	@$(PY) -m ruff check --fix . && $(PY) -m ruff format . && $(PY) -m mypy

.venv/.ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer was found; install it (Debian: apt-get install python3) or run make PYTHON=/path/to/python3"; exit 3; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "make: $(PYTHON) has no venv support; install it (Debian: apt-get install python3-venv)"; exit 3; }
	@command -v g++ >/dev/null || { echo "make: no C++ compiler was found; install one (Debian: apt-get install g++)"; exit 3; }
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@echo "Installing DICE into .venv (PyTorch is the large part) ..."
	@$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt torch && \
	 $(PY) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv kernels build dist .pytest_cache .mypy_cache .ruff_cache
