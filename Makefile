# Everything a developer runs. `make up` and `make test` set up what is missing.
#
#   make up ARGS="--nodes 5 --fresh"     options of `qq up`
#   make test TESTS=tests/http           a part of the tests
#   make sim SEEDS=100000                the simulation, for the night
#   make bench ARGS="--only drain" RECOVERY="--messages 1000000 --singles 0"

PYTHON ?= python3
TESTS ?= tests
SEEDS ?= 1000
ARGS ?=
RECOVERY ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: setup up test lint bench sim clean

setup: $(VENV)/stamp

# setuptools is pinned with the rest, so our own package is built without fetching anything that has no hash.
$(VENV)/stamp: requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "qq needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes -r requirements/dev.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

up: setup
	@$(BIN)/qq up $(ARGS)

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(TESTS)

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/basedpyright

bench: setup
	$(BIN)/python tests/benchmarks/bench.py $(ARGS)
	$(BIN)/python tests/benchmarks/recovery.py $(RECOVERY)

sim: setup
	$(BIN)/python -m chaos.sim --seeds $(SEEDS) $(ARGS)

# The data of `make up` (./var) stays: `make up ARGS=--fresh` is for that.
clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find cluster qq chaos tests -name __pycache__ -prune -exec rm -rf {} +
