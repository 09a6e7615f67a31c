# `make` sets everything up and builds every manifest; `make test` sets everything up and runs all checks.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: all test check clean

all: $(VENV)/.installed-build
	$(BIN)/doit

test: $(VENV)/.installed-dev check
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

$(VENV)/.installed-%: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[$(if $(filter dev,$*),build$(comma)dev,$*)]'
	touch $@

clean:
	rm -rf $(VENV)

comma := ,
