# Works on a machine that has only Python and make: everything goes into .venv, in pinned versions.

PYTHON ?= python3
# Tests wait for processes half of the time: so many keep two cores busy.
WORKERS ?= 6
BIN := .venv/bin
PIP := -m pip install -qq --disable-pip-version-check
# Takes nothing but the files whose hashes are in requirements/.
LOCKED := $(PIP) --require-hashes
# The blocking client is not in the repository; it is made from the asynchronous one before anything uses it.
MADE := $(shell $(PYTHON) scripts/unasync.py)
PINS := uv pip compile --quiet --universal --generate-hashes --no-annotate --fork-strategy fewest \
	--python-version 3.11 --custom-compile-command "make pins"

# A stamp says that its installation is done and newer than what describes it.
# The pins agree with each other, so either installation may come first.
RUN := .venv/.installed-run
DEV := .venv/.installed-dev
TOOLS := .tools/.installed
INTEROP := .interop/.installed

# The official clients of other languages; that of PyPI is in requirements/interop.txt.
NPM_PACKAGES := bun@1.4.5 bunqueue@2.9.5

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo install test test-busy smoke nightly chaos drill test-interop lint audit pins format bench bench-check clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(RUN) ## run the demonstration (DEMO_PATH=folder: works through that one)
	@$(BIN)/python scripts/demo/demo.py

install: $(DEV) ## install everything that development needs

# Files stay whole, so that what a module shares starts once; tests/conftest.py has the longest begin first.  Spark's
# tests share one session, which takes seconds to start and much memory: a process of their own, beside the others.
# It goes first: Spark gives up a Python process that has not loaded within 10 s, and cannot be told otherwise.
# A test takes a minute at most on a busy machine.  One that takes five hangs: its process, whose stacks were shown
# a minute before, is ended, and another does the rest.
HANGS := -o faulthandler_timeout=240 --timeout 300
# Spark compiles its first report as it runs, on a busy machine for minutes.
SLOW := -o faulthandler_timeout=840 --timeout 900
FILES := --dist loadfile --no-loadscope-reorder --timeout-method thread
SPARK_LOG := .pytest_cache/spark.log
test: $(DEV) ## run the tests (CONTRIBUTING says which)
	@mkdir -p .pytest_cache
	@$(BIN)/pytest -q $(SLOW) -o cache_dir=.pytest_cache/spark tests/spark > $(SPARK_LOG) 2>&1 & spark=$$!; \
		trap 'kill $$spark 2>/dev/null' INT TERM; \
		nice -n 3 $(BIN)/pytest -q -n $(WORKERS) $(FILES) $(HANGS) --ignore tests/spark; status=$$?; \
		wait $$spark || status=1; echo "== tests/spark"; cat $(SPARK_LOG); exit $$status

test-busy: $(DEV) ## run the tests while four processes burn the cores
	$(BIN)/python scripts/burn.py $(MAKE) test

smoke: $(DEV) ## install the wheel into empty environments, one for each Python from 3.11 to 3.14 that is here, and use it
	@$(BIN)/python scripts/smoke.py $(ARGS)

# Whatever `make test` runs, with new examples, more seeds and more kills, and what takes minutes.
NIGHT := -o faulthandler_timeout=3000 --timeout 3600
nightly: $(DEV) ## run everything with large budgets, for hours (as root: more of it)
	$(BIN)/python scripts/smoke.py --tests; versions=$$?; \
		NIGHTLY=1 $(BIN)/pytest -q -m "not interop" -n 2 $(FILES) $(NIGHT) --ignore tests/spark; status=$$?; \
		NIGHTLY=1 $(BIN)/pytest -q -m "not interop" $(NIGHT) tests/spark && exit $$((status + versions))

MINUTES ?= 10
chaos: $(DEV) ## break a cluster of three hosts for MINUTES, check what its clients saw, draw chaos.html (as root: links, too)
	CHAOS_MINUTES=$(MINUTES) CHAOS_REPORT=$(CURDIR)/chaos.html $(BIN)/pytest -v -s tests/chaos/test_chaos.py

drill: $(DEV) ## lose the disk of a server that is backed up to S3, several times, and restore it
	NIGHTLY=1 $(BIN)/pytest -v $(NIGHT) tests/faults/test_drill.py tests/shard/test_shipping.py tests/shard/test_backups.py \
		tests/shard/test_following.py tests/server/test_standby.py

test-interop: $(DEV) $(INTEROP) ## try the server with the official clients of npm and PyPI (needs npm)
	$(BIN)/pytest -q -m interop -n $(WORKERS) --dist worksteal tests/interop

lint: $(DEV) ## check style, types, imports, sizes and sleeps in tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/oxlint --deny-warnings bunqueue/gateway/dashboard/assets
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_sizes.py
	$(BIN)/python scripts/check_sleeps.py

# Not a part of lint: it asks a database of advisories, so it needs a network, and its answer changes by itself.
audit: $(TOOLS) ## look for known vulnerabilities in the pinned versions (needs a network)
	.tools/bin/pip-audit --strict --disable-pip $(addprefix -r requirements/,build.txt run.txt dev.txt tools.txt)

# Versions that are pinned stay as long as pyproject.toml allows them. The hashes are those of all platforms.
pins: $(TOOLS) ## make requirements/ anew from pyproject.toml (ARGS=--upgrade: in the newest versions; needs a network)
	.tools/bin/$(PINS) $(ARGS) --group build --output-file requirements/build.txt
	.tools/bin/$(PINS) $(ARGS) --output-file requirements/run.txt pyproject.toml
	.tools/bin/$(PINS) $(ARGS) --constraints requirements/run.txt --extra dev --output-file requirements/dev.txt pyproject.toml
	.tools/bin/$(PINS) $(ARGS) --constraints requirements/dev.txt --extra store --extra s3 --extra backup --extra oidc --output-file requirements/image.txt pyproject.toml
	.tools/bin/$(PINS) $(ARGS) --group interop --output-file requirements/interop.txt
	.tools/bin/$(PINS) $(ARGS) --group s3 --output-file requirements/s3.txt
	.tools/bin/$(PINS) $(ARGS) --group tools --output-file requirements/tools.txt

format: $(DEV) ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV) ## put load on a running server (ARGS="drain --port 6789 --jobs 50000")
	@$(BIN)/python scripts/load_test.py $(or $(ARGS),push)

bench-check: $(DEV) ## count what fixed loads cost, compare with scripts/bench_check.json (ARGS=--update: write it)
	$(BIN)/python scripts/bench_check.py $(ARGS)

clean: ## remove what tools leave behind, but keep .venv
	rm -rf build dist *.egg-info .interop/run-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv .venv

# The build backend comes first: it builds this package and those that have no wheel, where pip would otherwise
# fetch a backend of its own that has no hash.  pip compiles what it installs, but not what it installs editable, which
# each process of a server and of the tests that is started first would compile again.
define install
	@$(BIN)/python $(LOCKED) -r requirements/build.txt
	@$(BIN)/python $(LOCKED) --no-build-isolation -r requirements/$(1).txt
	@$(BIN)/python $(PIP) --no-build-isolation --no-deps -e .
	@$(BIN)/python -m compileall -q bunqueue router shardproc
endef

$(RUN): pyproject.toml requirements/build.txt requirements/run.txt | $(BIN)/python
	@echo "Installing what running needs into .venv"
	$(call install,run)
	@touch $@

$(DEV): pyproject.toml requirements/build.txt requirements/run.txt requirements/dev.txt | $(BIN)/python
	@echo "Installing what development needs into .venv"
	$(call install,dev)
	@touch $(RUN) $@

$(TOOLS): requirements/tools.txt
	@$(PYTHON) -m venv .tools
	@.tools/bin/python $(LOCKED) --only-binary :all: -r requirements/tools.txt || { \
		echo "pip could not install requirements/tools.txt: is there a network?"; exit 1; }
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
	@.interop/venv/bin/python $(LOCKED) --only-binary :all: -r requirements/interop.txt || { \
		echo "pip could not install requirements/interop.txt: is there a network?"; exit 1; }
	@touch $@
