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
AUDIT := .audit/.installed
INTEROP := .interop/.installed

# The official clients of other languages; that of PyPI stands in requirements/interop.txt.
NPM_PACKAGES := bun@1.4.5 bunqueue@2.9.5

PIP_AUDIT := pip-audit==2.10.1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo install test faults test-interop lint audit format bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(RUN) ## run the demonstration (DEMO_PATH=folder: works through that one)
	@$(BIN)/python scripts/demo.py

install: $(DEV) ## install everything that development needs

# Spark's tests share one session, which takes seconds to start and much memory, so they run in one process.
test: $(DEV) ## run the tests
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal --ignore tests/spark; \
		status=$$?; $(BIN)/pytest -q tests/spark && exit $$status

faults: $(DEV) ## run the long fault tests: full disks, power cuts, clocks, bad networks (as root: more of them)
	$(BIN)/pytest -v -m faults tests/faults

test-interop: $(DEV) $(INTEROP) ## try the server with the official clients of npm and PyPI (needs npm)
	$(BIN)/pytest -q -m interop -n $(WORKERS) --dist worksteal tests/interop

lint: $(DEV) ## check style, types, imports and sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/oxlint --deny-warnings bunqueue/gateway/dashboard/assets
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_sizes.py

# Not a part of lint: it asks a database of advisories, so it needs a network, and its answer changes by itself.
audit: $(AUDIT) ## look for known vulnerabilities in the pinned versions (needs a network)
	.audit/bin/pip-audit --strict --no-deps --disable-pip -r requirements/run.txt -r requirements/dev.txt

format: $(DEV) ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV) ## put load on a running server (ARGS="drain --port 6789 --jobs 50000")
	@$(BIN)/python scripts/load_test.py $(or $(ARGS),push)

clean: ## remove what tools leave behind, but keep .venv
	rm -rf build dist *.egg-info .interop/run-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
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

$(AUDIT): Makefile
	@$(PYTHON) -m venv .audit
	@PIP_DISABLE_PIP_VERSION_CHECK=1 .audit/bin/python -m pip install -qq $(PIP_AUDIT) || { \
		echo "pip could not install $(PIP_AUDIT): is there a network?"; exit 1; }
	@touch $@

# Nothing of it is shared with .venv: the client of PyPI is imported by the name of this package.
$(INTEROP): requirements/interop.txt Makefile
	@command -v npm > /dev/null || { \
		echo "make test-interop needs npm, which comes with Node.js: https://nodejs.org"; exit 1; }
	@echo "Installing the official clients of other languages into .interop"
	@mkdir -p .interop
	@npm install --prefix .interop --no-save --no-package-lock --no-audit --no-fund --loglevel error \
		$(NPM_PACKAGES) > .interop/npm.log 2>&1 || { cat .interop/npm.log; \
		echo "npm could not install $(NPM_PACKAGES): is there a network, and a registry that npm can reach?"; exit 1; }
	@$(PYTHON) -m venv .interop/venv
	@PIP_DISABLE_PIP_VERSION_CHECK=1 .interop/venv/bin/python -m pip install -qq -r requirements/interop.txt || { \
		echo "pip could not install requirements/interop.txt: is there a network?"; exit 1; }
	@touch $@
