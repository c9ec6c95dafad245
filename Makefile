# Everything installs what it needs; only Python 3.11 or later and pip are assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all test-cuda-build image fuzz kills check unit format reference clean

# The whole way on a real small model, on a CPU; run again, it reuses every stage.
# Where it did not promote, its last line states what happened and what to do.
demo: $(VENV)/.installed
	@$(BIN)/prepare model demo:smollm2-135m --profile cpu || { code=$$?; case $$code in \
	4|5) echo "make demo: a variant failed a gate or left one undecided (see the table), which an intact model does not; please report it with the output of '$(BIN)/prepare runs latest'." ;; \
	130) echo "make demo: it was interrupted; 'make demo' continues where this run ended." ;; \
	*) echo "make demo: it failed with exit code $$code; the error above states the cause and its hint, then 'make demo' continues." ;; \
	esac >&2; exit $$code; }

# Unit tests first: they say in minutes what the end-to-end tests would say in half an hour. These
# share one server and run one after another.
# `make test-all` runs the end-to-end modules that tests/e2e/conftest.py does not list, too, and tests marked `of_everything`.
test: unit
	$(BIN)/python -m pytest tests/e2e --durations=20

# Everything, the demo on a busy machine, and 100,000 damaged inputs for each reader of what others wrote: an hour more.
test-all: unit
	$(BIN)/python -m pytest tests/e2e --everything
	$(MAKE) fuzz
	scripts/demo-under-load.sh

# 1,000 SIGKILLs of three processes on one store, 200 without locks, a full disk.
kills: $(VENV)/.installed-dev
	$(BIN)/python scripts/kills.py

fuzz: $(VENV)/.installed-dev
	FUZZ_MUTATIONS=100000 $(BIN)/python -m pytest tests/fuzz --numprocesses auto
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest tests/unit --numprocesses auto --dist loadfile

# One process a core; a file's tests stay together, because they share fixtures.
unit: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/unit --numprocesses auto --dist loadfile

# Builds the CUDA serving environment (9.6 GB) and asks vLLM itself, over a faked H100.
test-cuda-build: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/cuda_build/test_cuda_build.py -s

# The image of docs/how-to/clusters-and-containers.md; IMAGE_OPTIONS go to `podman build`.
ACCELERATOR ?= cuda
image:
	podman build --build-arg ACCELERATOR=$(ACCELERATOR) --tag prepare:$(ACCELERATOR) $(IMAGE_OPTIONS) .

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/deptry prepare pipeline recipes eval_gates artifacts
	$(BIN)/python scripts/check_imports.py
	$(BIN)/python scripts/measure.py --check

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Writes the pages of docs/reference that follow from the code.
reference: $(VENV)/.installed-dev
	$(BIN)/python scripts/reference.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .import_linter_cache .ruff_cache .pytest_cache .hypothesis

# The pinned versions are those of requirements-dev.txt; the first install leaves the tools out.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml requirements-dev.txt | $(VENV)/bin/python
	@$(PIP) --constraint requirements-dev.txt --editable . || { code=$$?; \
	echo "make: prepare could not be installed; pip's error is above, and the same command tries again." >&2; exit $$code; }
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --requirement requirements-dev.txt
	touch $@
