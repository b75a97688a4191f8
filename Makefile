# One entry to everything. `make` alone lists the targets.
# PYTHON names the interpreter for the environment, ARGS what is passed on to the command.

.DEFAULT_GOAL := help
.PHONY: help check test lint format docs results contracts twins peers bench traces clean

PYTHON ?= python3
ARGS ?=
VENV := .venv
PEERS := .venv-peers
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

help: ## List the targets
	@echo 'usage: make TARGET [ARGS="..."] [PYTHON=python3.12]'
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

check: $(INSTALLED) ## Check the pool against the spec, with one table of verdicts
	@$(BIN)/kvspec check $(ARGS)

test: $(INSTALLED) ## Run the test suite, e.g. ARGS="-m 'not slow' -k pool"
	@$(BIN)/python -m pytest $(ARGS)

lint: $(INSTALLED) ## Check style, format and types; change nothing
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy

format: $(INSTALLED) ## Format the code and mend what can be mended safely
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

docs: $(INSTALLED) ## Write docs/invariants.md and docs/results.md again from registry and results
	@$(BIN)/python -m conformance.documents.document $(ARGS)
	@$(BIN)/python -m conformance.documents.results_document $(ARGS)

results: $(INSTALLED) ## Record under docs/results/ what is explored and proved (a quarter of an hour)
	@$(BIN)/python -m conformance.documents.recording $(ARGS)

contracts: $(INSTALLED) ## Check the contracts on kvcache with CrossHair (a minute on two cores)
	@$(BIN)/kvspec contracts $(ARGS)

twins: $(INSTALLED) ## Count the worlds with the models in Promela and Murphi (needs spin, rumur, cc)
	@$(BIN)/python spec/twins/run.py $(ARGS)

peers: $(PEERS)/.installed ## Install vLLM 0.8.5 and 0.33.0 into $(PEERS) and run the tests against them
	@KVSPEC_PEERS=$(CURDIR)/$(PEERS) $(PEERS)/bin/python -m pytest tests/peers $(ARGS)

bench: $(INSTALLED) ## Measure how long a replay takes
	@$(BIN)/python benchmarks/replay.py $(ARGS)

traces: ## Say where the public traces come from, and verify those in $KVSPEC_TRACES
	@$(PYTHON) benchmarks/traces.py

clean: ## Remove the environment, the caches and what was built
	@rm -rf $(VENV) $(PEERS) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment is made once, and brought up to date when what it is made from changes. One that
# stopped half way has no working pip and is made anew.
$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "make: no interpreter: $(PYTHON); install Python 3.11 or later, or name one:" \
	    "make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; \
	  v >= (3, 11) or sys.exit("make: $(PYTHON) is Python %d.%d; kvspec needs 3.11 or later: " \
	  "make PYTHON=/path/to/python3.11" % v[:2])'
	@echo 'setting up $(VENV) (once, about a minute)' >&2
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[dev]'
	@touch $@

# The releases of vLLM that the specification is held against, without a GPU. 0.33.0 is installed
# without its requirements, of which the block manager and the scheduler need few. Of 0.8.5 only the
# sources of its block manager are unpacked; its adapter loads them from there.
$(PEERS)/.installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: no interpreter: $(PYTHON)" >&2; exit 1; }
	@echo 'setting up $(PEERS) (once): downloads two wheels of vLLM, 340 MB each, and about 250 MB' \
	  'beside PyTorch; takes 3 GB of disk' >&2
	@$(PEERS)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[vllm]' pytest
	@$(PEERS)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps \
	  vllm==0.33.0
	@rm -rf $(PEERS)/vllm-0.8.5 $(PEERS)/wheel
	@$(PEERS)/bin/python -m pip download --quiet --quiet --disable-pip-version-check --no-deps \
	  --only-binary=:all: --dest $(PEERS)/wheel vllm==0.8.5
	@$(PEERS)/bin/python -m zipfile -e $(PEERS)/wheel/vllm-0.8.5-*.whl $(PEERS)/unpacked
	@mkdir -p $(PEERS)/vllm-0.8.5/vllm
	@mv $(PEERS)/unpacked/vllm/v1 $(PEERS)/vllm-0.8.5/vllm/v1
	@rm -rf $(PEERS)/wheel $(PEERS)/unpacked
	@touch $@
