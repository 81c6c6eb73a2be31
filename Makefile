PYTHON ?= python3
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1

# One thread per test process: torch would otherwise start one per core in each of them.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS)

.DEFAULT_GOAL := setup
.PHONY: setup demo test test-all lint format docs bench clean

setup: $(STAMP)

# Runs again only when the dependencies change; the package itself is installed in editable mode. Modules are compiled
# when they are first imported, as most of them never are.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e ".[transformers,demo,docs,test,lint]"
	touch $@

# Each run gets a folder of its own, named after the time.
demo: $(STAMP)
	$(BIN)/leanbayes compare digits

test: $(STAMP)
	$(PYTEST) -m "not slow and not gpu and not inductor"

test-all: $(STAMP)
	$(PYTEST) -m "not gpu"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: $(STAMP)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP)
	$(BIN)/leanbayes bench

# Build outputs and caches; the environment stays (remove $(VENV) for a fresh one).
clean:
	rm -rf build dist site .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
