# `make demo` shows what DICE does. Checks come at three speeds: `make check` in a minute, `make test` in a
# quarter of an hour on two cores, `make test-all` with what is slow. Each sets up .venv first; a second run starts at once.
# Paths are relative throughout, so the checkout may lie in a folder of any name.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
PY := .venv/bin/python

# Python keeps what it compiles, and pytest the tests that it rewrites: else each of a thousand processes does both anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo check types quick-tests bytecode test test-all test-gpu lint docs clean

demo: .venv/.ready  ## write, compile, run and check three kernels
	@$(PY) -m dice generate examples/activation_chain.py examples/softmax.py examples/matmul.py -o kernels

check: .venv/.ready  ## format, lint, types, and the tests that start no process
	@$(PY) -m ruff format --quiet --check . || { echo "make check: \`make lint\` formats these files."; exit 1; }
	@$(PY) -m ruff check --quiet .
	@$(MAKE) --no-print-directory -j 2 --output-sync=target types quick-tests

types: .venv/.ready
	@$(PY) -m mypy

quick-tests: .venv/.ready
	@$(PY) -m pytest -q -n 2 -m "not process and not slow and not gpu"

# Of what pip installs it compiles the modules, but not those of a checkout: all processes that start at once would.
bytecode: .venv/.ready
	@$(PY) -m compileall -q -x '/(cases|hostile|modules)/' dice  # but for what is read as text

TESTS := not slow
test: bytecode  ## the test suite without its slow tests; four at a time, since many of them wait for processes
	@$(PY) -m pytest -q -n 4 --dist loadgroup -m "$(TESTS)"

test-all: bytecode  ## the whole test suite
	@$(PY) -m pytest -q -n 2 --dist loadgroup

test-gpu: bytecode  ## the tests that need a GPU, and a table of what ran; one at a time, since some of them time
	@$(PY) -m pytest -q -m gpu --table

lint: .venv/.ready  ## format and fix what can be fixed, then check
	@$(PY) -m ruff check --fix . && $(PY) -m ruff format . && $(PY) -m mypy

docs: .venv/.docs  ## the site, in build/docs; figures and pictures of imports are made anew first
	@$(PY) docs/tools/results.py && $(PY) docs/tools/recipes.py && $(PY) docs/tools/imports.py
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict && echo "The site is in build/docs/index.html"

.venv/.docs: .venv/.ready
	@$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

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
