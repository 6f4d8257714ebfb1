# Works on a machine that has only Python and make: everything goes into .venv, in pinned versions.

PYTHON ?= python3
# Tests mostly wait for processes, so more of them than there are cores.
WORKERS ?= 4
BIN := .venv/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install -qq

# A stamp says that its installation is done and newer than what describes it.
# The constraints agree with each other, so either installation may come first.
RUN := .venv/.installed-run
DEV := .venv/.installed-dev

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo install test lint format bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(RUN) ## run the demonstration (DEMO_PATH=folder: works through that one)
	@$(BIN)/python scripts/demo.py

install: $(DEV) ## install everything that development needs

test: $(DEV) ## run the tests
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal

lint: $(DEV) ## check style, types, imports and sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_sizes.py

format: $(DEV) ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV) ## put load on a running server (ARGS="drain --port 6789 --jobs 50000")
	@$(BIN)/python scripts/load_test.py $(or $(ARGS),push)

clean: ## remove what tools leave behind, but keep .venv
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv .venv

$(RUN): pyproject.toml requirements/run.txt | $(BIN)/python
	@echo "Installing what running needs into .venv"
	@$(PIP) -c requirements/run.txt -e .
	@touch $@

$(DEV): pyproject.toml requirements/run.txt requirements/dev.txt | $(BIN)/python
	@echo "Installing what development needs into .venv"
	@$(PIP) -c requirements/dev.txt -e '.[dev]'
	@touch $(RUN) $@
