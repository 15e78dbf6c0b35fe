# Every target sets up what it needs first: a virtual environment in .venv, by scripts/install.py.
# From a fresh clone, Python 3.11 or newer and make are enough.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SETUP := $(PYTHON) scripts/install.py --venv $(VENV)

.DEFAULT_GOAL := help
.PHONY: demo test test-full quick check sim bench docs clean help

demo: ## train the demo's policy from random weights and watch its reward climb (under three minutes)
	@$(SETUP) demo
	@$(BIN)/eventrain demo

# Side by side where tests are short; what starts processes of its own has the machine for itself.
QUICKLY := -m "not slow" -n auto --dist loadfile

test: ## run all tests; those with a real vLLM only where EVENTRAIN_VLLM_PYTHON names its Python
	@$(SETUP) test
	@status=0; $(BIN)/python -m pytest $(QUICKLY) || status=$$?; $(BIN)/python -m pytest -m slow || status=$$?; exit $$status

test-full: ## run all tests with a real vLLM too, which gets an environment of its own in .venv-vllm
	@eval "$$(PYTHON=$(PYTHON) scripts/vllm_env.sh .venv-vllm)"; $(MAKE) test

quick: ## run the tests that take less than a few seconds each
	@$(SETUP) test
	@$(BIN)/python -m pytest $(QUICKLY)

check: lint types imports ## lint, check types, check the direction of imports

# The last two look for a package `eventrain`; its folders lie at the top, so .build/eventrain holds links to them.
.PHONY: lint types imports links
lint:
	@$(SETUP) test
	$(BIN)/ruff check --output-format concise .

types: links
	MYPYPATH=.build $(BIN)/mypy -p eventrain.core -p eventrain.events -p eventrain.adapters

imports: links
	PYTHONPATH=.build $(BIN)/lint-imports --no-logo

links:
	@$(SETUP) test
	@mkdir -p .build/eventrain
	@for part in core events adapters; do ln -sfn ../../$$part .build/eventrain/$$part; done

sim: ## run 1,000 random worlds in virtual time, and look for stalls and losses
	@$(SETUP) test
	@$(BIN)/eventrain simulate --chaos --seeds 1000

bench: ## run every benchmark; each prints a table
	@$(SETUP) bench
	@set -e; for script in benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python $$script; done

docs: ## write docs/events.md and docs/configuration.md anew from the code
	@$(SETUP) test
	@$(BIN)/python docs/generate.py

clean: ## remove the environment, caches and build products; runs stay
	rm -rf $(VENV) .venv-vllm .build build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## list the targets
	@awk -F' ## ' '/^[a-z]+:.* ## / { sub(/:.*/, "", $$1); printf "  make %-7s %s\n", $$1, $$2 }' Makefile
