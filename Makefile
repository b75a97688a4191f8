# One entry to everything. `make` alone lists the targets.
# PYTHON names the interpreter for the environment, ARGS what is passed on to the command.

.DEFAULT_GOAL := help
.PHONY: help check test lint format docs results twins bench traces clean

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

help: ## List the targets
	@echo 'usage: make TARGET [ARGS="..."] [PYTHON=python3.12]'
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

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

docs: $(INSTALLED) ## Write docs/invariants.md again from the registry
	@$(BIN)/python -m conformance.document $(ARGS)

results: $(INSTALLED) ## Record under docs/results/ what is explored and proved (a quarter of an hour)
	@$(BIN)/python -m conformance.results $(ARGS)

twins: $(INSTALLED) ## Count the worlds with the models in Promela and Murphi (needs spin, rumur, cc)
	@$(BIN)/python spec/twins/run.py $(ARGS)

bench: $(INSTALLED) ## Measure how long a replay takes
	@$(BIN)/python benchmarks/replay.py $(ARGS)

traces: ## Say where the public traces come from, and verify those in $KVSPEC_TRACES
	@$(PYTHON) benchmarks/traces.py

clean: ## Remove the environment, the caches and what was built
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
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
