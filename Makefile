# Everything a developer runs. `make up` and `make test` set up what is missing.
#
#   make up ARGS="--nodes 5 --fresh"     options of `qq up`
#   make test TESTS=tests/http           a part of the tests
#   make quick                           a minute's worth of them, without Spark, Toxiproxy and Java, after each change
#   make long                            what shows more of the same than `make test`, for the night and before a release
#   make interop                         the clients' own tests that take minutes; PIKA_SOURCE=DIR, JAVA_CLIENT_SOURCE=DIR, RHEA_SOURCE=DIR: theirs, too;
#                                        RABBITMQ_ROOT=DIR: RabbitMQ's shovel, from a Debian 13 in this directory
#   make page ARGS="-k theme"            the management page in a real browser; then what `make bench` leaves out: 20,000 queues on it
#   make page-types                      the types of its scripts, with npm
#   make screenshots                     the pictures of it in the documentation
#   make deploy-test                     docker-compose.yml with a real engine: it takes minutes, and Docker or Podman
#   make sim SEEDS=100000                the simulation, for the night; ARGS=--leases: readers lease messages in each run, --amqp10: clients of both protocols
#   make fuzz SECONDS=30000 EXAMPLES=5000    damaged clients against a real node, hostile ones and floods against a cluster,
#                                        and what tests draw at random, for the night
#   make spark RUNS=200 ARGS="--master local-cluster[2,1,1024] --together 10"      queries of Spark whose driver, executors and nodes are killed
#   make chaos ARGS="--nodes 5 --for 5m --nemesis network --seed 7"      a real cluster, hurt and judged
#   make bench ARGS="--only drain" LATENCY="--repeat 1" PROTOCOLS="--only window" ONE_AT_A_TIME="--only get" BUDGET="--follower" CALLS="--messages 50" CODEC="--repeat 5" DEAREST="--repeat 1" HURT="--only disk" FLOODS="--short"
#              CONNECTIONS="--idle 1000" WATCHING="--queues 1000 --each" RECOVERY="--messages 1000000 --singles 0" UPKEEP="--seconds 14400 --backlog 0" MEMBERS="--repeat 1 --backlog 0"
#              FAILOVER="--repeat 1 --busy 0" CHECKER="--rows 1000000" DATA_FRAMES="--rows 10000000 --only archive"
#   make setup PYTHON=python3.13         another interpreter than python3

PYTHON ?= python3
TESTS ?= tests
SEEDS ?= 1000
SECONDS ?= 60
RUNS ?= 200
EXAMPLES ?= 100
ARGS ?=
LATENCY ?=
PROTOCOLS ?=
BUDGET ?=
CALLS ?=
CODEC ?=
FLOODS ?=
DEAREST ?=
HURT ?=
CONNECTIONS ?=
WATCHING ?=
ONE_AT_A_TIME ?=
RECOVERY ?=
UPKEEP ?=
MEMBERS ?=
FAILOVER ?=
CHECKER ?=
DATA_FRAMES ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python requirements/install.py
# There while packages are installed, and afterwards if that was interrupted.
UNFINISHED := $(VENV)/unfinished

# Byte code is kept, whatever the shell says: each process that runs the tests would compile all of them anew, for a quarter
# of a minute.
unexport PYTHONDONTWRITEBYTECODE

# Where tests draw what they try at random, and need nothing large.
DRAWING := $(addprefix tests/,amqp amqp10 amqp_server cluster http machine management routing sessions shovels stored test_ranges.py test_tables.py)

.PHONY: setup venv java toxiproxy chromium page page-types screenshots up test tests quick long interop deploy-test lint style types collect docs bench sim fuzz spark chaos clean

setup: venv java

venv: $(VENV)/stamp

# What running needs comes first: `make up` waits for nothing else, and not for byte code of modules that nobody uses. What is
# there as source only, and our own package, is built by the pinned setuptools: nothing is fetched that has no hash.
$(VENV)/run-stamp: requirements/install.py requirements/setup.txt requirements/build.txt requirements/run.txt pyproject.toml setup.py
$(VENV)/stamp: requirements/dev.txt $(VENV)/run-stamp
# Spark is large, and `make up` does not need it. Proton is built from C, with cffi from dev.txt, in 15 s.
$(VENV)/chaos-stamp: requirements/chaos.txt $(VENV)/stamp
$(VENV)/docs-stamp: requirements/docs.txt $(VENV)/stamp

# Of several `make` in one directory one does it at a time, in a `make` of its own, and the others find it done.
ifndef ALONE
$(VENV)/run-stamp: $(wildcard $(UNFINISHED))
$(UNFINISHED):
$(VENV)/run-stamp $(VENV)/stamp $(VENV)/chaos-stamp $(VENV)/docs-stamp:
	@flock --nonblock Makefile true || echo "another make is setting up $(VENV): waiting for it"
	@flock Makefile $(MAKE) --no-print-directory ALONE=1 $@
else
# Packages that are there in part would be taken for installed.
$(shell test ! -e $(UNFINISHED) || rm -rf $(VENV))

$(VENV)/run-stamp:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "qq needs Python 3.11 or newer")'
	$(PYTHON) -m venv --without-pip $(VENV)
	$(INSTALL) --require-hashes -r requirements/build.txt \
		-- --require-hashes --no-build-isolation -r requirements/run.txt \
		-- --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/stamp:
	$(INSTALL) --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/chaos-stamp:
	$(INSTALL) --require-hashes --no-build-isolation -r requirements/chaos.txt
	@touch $@

$(VENV)/docs-stamp:
	$(INSTALL) --require-hashes -r requirements/docs.txt
	@touch $@
endif

# What is not from the package index: brought into .tools where the machine has none.
java: $(VENV)/chaos-stamp
	@$(BIN)/python -m chaos.pipeline.java --install

toxiproxy: $(VENV)/chaos-stamp
	@$(BIN)/python -m chaos.live.toxiproxy --install

chromium: venv
	@$(BIN)/python -m tests.page.chromium --install

up: $(VENV)/run-stamp
	@$(BIN)/qq up $(ARGS)

# Where Java, Toxiproxy or Chromium cannot be had, the tests that need them fail and say so. Tests wait much, so there are more
# workers than cores.
test: $(VENV)/chaos-stamp $(VENV)/docs-stamp
	-@$(MAKE) --no-print-directory java
	-@$(MAKE) --no-print-directory toxiproxy
	-@$(MAKE) --no-print-directory chromium
	@$(MAKE) --no-print-directory --jobs=2 lint tests

# Not `lint` first: types take a minute of one core, and meanwhile nobody would use the others.
tests: collect
	$(BIN)/python -m pytest -n 4 --dist loadgroup $(TESTS)

quick: venv
	$(BIN)/ruff check
	$(BIN)/python -m pytest -n 3 --dist loadgroup --quick $(TESTS)
	$(BIN)/python -m chaos.sim --seeds 2

long: java toxiproxy
	$(BIN)/python -m pytest -n 4 --dist loadgroup -m long $(TESTS)

interop: venv
	$(BIN)/python -m pytest -m interop tests/interop

page: chromium
	$(BIN)/python -m pytest -n 0 -v tests/page $(ARGS)
	$(BIN)/python -m tests.page.many_queues

# For who has npm: the types that the scripts of the page say they have. Their libraries are somebody else's.
page-types:
	! npm exec --yes --package=typescript@7.0.2 -- tsc -p tests/page/tsconfig.json | grep '/static/js/'

screenshots: chromium
	$(BIN)/python -m tests.page.screenshots

# The figures are printed as they are measured. ARGS="-k mistake" runs a part.
deploy-test: venv
	$(BIN)/python -m pytest -m deployed -v --capture=no tests/deploy $(ARGS)

lint: style types

style: $(VENV)/stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-cache --no-logo

# The types of what `chaos` is built on are looked at, too.
types: $(VENV)/chaos-stamp
	$(BIN)/basedpyright

# Byte code of the tests, and the numbers in them that Hypothesis looks for: else each worker makes all of it, for half a
# minute. A test that cannot be collected is seen here.
collect: $(VENV)/stamp
	@collected=$$($(BIN)/python -m pytest -n 0 -qq --collect-only $(TESTS)) || { echo "$$collected"; exit 1; }

# A site of static pages, in build/docs. Whatever mkdocs has to complain of is an error.
docs: $(VENV)/docs-stamp
	$(BIN)/python -m mkdocs build --strict

# A part that misses an aim fails, after the others have run.
# They use `chaos` and `cluster`, which only the checkout has at top level.
bench: export PYTHONPATH := $(CURDIR)
bench: venv java
	missed=0; \
	$(BIN)/python tests/benchmarks/bench.py $(ARGS) || missed=1; \
	$(BIN)/python tests/benchmarks/latency.py $(LATENCY) || missed=1; \
	$(BIN)/python tests/benchmarks/protocols.py $(PROTOCOLS) || missed=1; \
	$(BIN)/python tests/benchmarks/one_at_a_time.py $(ONE_AT_A_TIME) || missed=1; \
	$(BIN)/python tests/benchmarks/budget.py $(BUDGET) || missed=1; \
	$(BIN)/python tests/benchmarks/calls.py $(CALLS) || missed=1; \
	$(BIN)/python tests/benchmarks/codec.py $(CODEC) || missed=1; \
	$(BIN)/python tests/benchmarks/dearest.py $(DEAREST) || missed=1; \
	$(BIN)/python tests/benchmarks/hurt.py $(HURT) || missed=1; \
	$(BIN)/python tests/benchmarks/floods.py $(FLOODS) || missed=1; \
	$(BIN)/python tests/benchmarks/connections.py $(CONNECTIONS) || missed=1; \
	$(BIN)/python tests/benchmarks/watching.py $(WATCHING) || missed=1; \
	$(BIN)/python tests/benchmarks/recovery.py $(RECOVERY) || missed=1; \
	$(BIN)/python tests/benchmarks/upkeep.py $(UPKEEP) || missed=1; \
	$(BIN)/python tests/benchmarks/members.py $(MEMBERS) || missed=1; \
	$(BIN)/python tests/benchmarks/failover.py $(FAILOVER) || missed=1; \
	$(BIN)/python tests/benchmarks/checker.py $(CHECKER) || missed=1; \
	$(BIN)/python tests/benchmarks/data_frames.py $(DATA_FRAMES) || missed=1; \
	exit $$missed

sim: $(VENV)/chaos-stamp
	$(BIN)/python -m chaos.sim --seeds $(SEEDS) $(ARGS)

fuzz: $(VENV)/chaos-stamp
	$(BIN)/python -m chaos.fuzz --seconds $(SECONDS) $(ARGS)
	$(BIN)/python -m chaos.fuzz --legal --seconds $(SECONDS) $(ARGS)
	$(BIN)/python -m chaos.fuzz --floods --seconds $(SECONDS) $(ARGS)
	$(BIN)/python -m pytest -n 2 --dist loadgroup --timeout=0 -m "hypothesis or seeds" --examples $(EXAMPLES) $(DRAWING)

spark: java
	$(BIN)/python -m tests.qq_spark.many_runs --runs $(RUNS) $(ARGS)

chaos: java toxiproxy
	$(BIN)/python -m chaos run $(ARGS)

# The data of `make up` (./var) stays: `make up ARGS=--fresh` is for that.
clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find cluster qq chaos tests -name __pycache__ -prune -exec rm -rf {} +
