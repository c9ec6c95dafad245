# Everything installs what it needs; only Python 3.11 or later and pip are assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check unit format clean

# The whole way on a real small model, on a CPU; run again, it reuses every stage.
demo: $(VENV)/.installed
	$(BIN)/prepare model demo:smollm2-135m --profile cpu

# Unit tests first: they say in seconds what the end-to-end test would say in minutes.
test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/unit tests/e2e

unit: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not e2e"

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The pinned versions are those of requirements-dev.txt; the first install leaves the tools out.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml requirements-dev.txt | $(VENV)/bin/python
	$(PIP) --constraint requirements-dev.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --requirement requirements-dev.txt
	touch $@
