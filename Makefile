# `make` sets everything up and builds every manifest; `make test` sets everything up and runs all checks.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: all test check clean

all: $(VENV)/.installed-build
	$(BIN)/doit

# Two processes of one thread each; a file's tests share what they build, so they stay together.
PYTEST := HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test: $(VENV)/.installed-dev check
	$(PYTEST) -m "not slow"
	$(PYTEST) -m slow

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

$(VENV)/.installed-build: EXTRAS := build
$(VENV)/.installed-dev: EXTRAS := build,serve,dev
$(VENV)/.installed-%: pyproject.toml | $(VENV)/.python
	@echo "Installing into $(VENV); a first time takes a few minutes."
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	@touch $@

# pip would search every old release for one that suits another Python before it said so.
$(VENV)/.python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v < (3, 14) else \
	"$(PYTHON) is Python %d.%d; expected 3.11, 3.12 or 3.13. Name one: make PYTHON=python3.12" % v[:2])'
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

clean:
	rm -rf $(VENV)
