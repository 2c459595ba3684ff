# `make test` and `make demo` are all that a fresh clone needs; `make help` names the rest.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
# Which tests run: see tests/suites.py.
SUITE ?= test
# One of them, for `make test-all`; empty: all.
SERVER ?=
# Further requirements, such as 'sqlalchemy<2.1'.
WITH ?=
# Tests wait more than they compute. A server that is named by its URL is one for all: some tests stop or set it.
WORKERS ?= $(if $(CLAIMJOBS_TEST_MYSQL_URL)$(CLAIMJOBS_TEST_MARIADB_URL)$(CLAIMJOBS_TEST_POSTGRES_URL),0,4)
SEED ?=
CHAOS_ARGS ?=
EXAMPLES_ARGS ?=
OPERATION_ARGS ?=
CLUSTER_ARGS ?=
BENCH_ARGS ?=
PEERS_ARGS ?=
MUTANTS_ARGS ?= --sample 120 --reach .mutants
DB ?=
ORDINARY_USER ?= nobody
LIBRARY := tests/unit tests/conformance tests/cli
# Where servers are not the question, one database does.
AS_USER := tests/cli -k 'not mysql and not mariadb'

BIN := $(VENV)/bin
PYTEST = -n $(WORKERS) --dist worksteal
ONE_SERVER = $(if $(SERVER),--server $(SERVER))
READY := $(VENV)/.ready
LOWEST := .venv-lowest
DEMO := $(BIN)/claimjobs setup-tables && exec $(BIN)/claimjobs start-processing --generators 2 --consumers 10 --duration 20

# Hundreds of processes import the library in a run of the tests: where nothing is kept, each compiles it again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help check test test-all demo lint format types layers tests as-user lowest chaos cluster operation bench bench-peers bench-pages examples model mutants fuzz docs servers clean

help: ## these lines
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

check: lint types layers ## after each edit, two minutes: lint, types, layers, unit tests, each kind of queue on Postgres
	$(BIN)/python -m pytest -n 2 --suite check $(PYTEST_ARGS)

test: lint types layers tests ## what CI runs, ten minutes: the same, and each test function on Postgres and on MySQL

# SERVER=none: the tests that name no server.
test-all: lint types layers servers ## before a release, forty minutes: all servers and parameters, and as an ordinary user (SERVER=mysql)
	rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest $(PYTEST) --suite test $(ONE_SERVER)
	$(if $(SERVER),,$(BIN)/python -m tests.executed)
	$(BIN)/python -m pytest $(PYTEST) --suite rest $(ONE_SERVER)
	$(if $(SERVER),,$(MAKE) as-user)

demo: $(READY) ## 2 generators and 10 consumers for 20 s on the embedded Postgres, or on DB=mysql, mariadb, postgres
ifeq ($(DB),)
	@env -u CLAIMJOBS_URL sh -c '$(DEMO)'
else
	@$(BIN)/python -m servers run $(DB) -- sh -c '$(DEMO)'
endif

lint: $(READY) ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(READY) ## ruff: repair what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(READY) ## mypy, strict
	$(BIN)/mypy

layers: $(READY) ## import-linter: who may import whom
	$(BIN)/lint-imports

tests: $(READY) servers ## pytest, in four processes, each with servers of its own (PYTEST_ARGS=..., WORKERS=n, SUITE=everything)
	$(BIN)/python -m pytest $(PYTEST) --suite $(SUITE) $(PYTEST_ARGS)

as-user: ## as root: the embedded Postgres and the commands, as an ordinary user in a private copy of this clone
	@if [ "$$(id -u)" = 0 ]; then .ci/private-copy $(ORDINARY_USER) $(MAKE) tests PYTEST_ARGS="$(AS_USER)"; else \
		echo "skipped: you are an ordinary user; \`make tests\` runs these as well"; fi

# uv, because pip has no way to choose the lowest version of what is named.
lowest: ## the library and its commands with the lowest versions that pyproject.toml names, in an environment of their own
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
		--editable '.[embedded]' --group dev
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(if $(PYTEST_ARGS),$(PYTEST_ARGS),$(LIBRARY))

chaos: model ## the model, then faults under load on Postgres and MySQL, and the proof that nothing is lost (SEED=n, CHAOS_ARGS=...)
	$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(CHAOS_ARGS)

cluster: $(READY) ## what people run in place of one server, each setting under load and faults: one table (CLUSTER_ARGS=...)
	@$(BIN)/python -m tests.cluster $(CLUSTER_ARGS)

operation: $(READY) ## a run operated for an hour on Postgres and MySQL: deployed, stopped, paused, scraped (OPERATION_ARGS=...)
	$(BIN)/python -m tests.operation $(OPERATION_ARGS)

bench: $(READY) ## claimjobs beside the raw loops, every scenario, on Postgres and MySQL: twenty minutes (BENCH_ARGS=--small)
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-peers: $(READY) ## jobs/s beside other job queues, each in an environment of its own, on Postgres and MySQL; 20 minutes (PEERS_ARGS=...)
	@$(BIN)/python -m benchmarks.peers $(PEERS_ARGS)

bench-pages: $(READY) ## the two above into files, and the pages and pictures of both made of these, the README's too; 40 minutes
	@$(BIN)/python -m benchmarks $(BENCH_ARGS) --json benchmarks/results
	@$(BIN)/python -m benchmarks.peers --claims rows batches $(PEERS_ARGS) --json docs/benchmarks-peers.json
	@$(BIN)/python -m docs.make_benchmarks
	@$(BIN)/python -m docs.make_scale
	@$(BIN)/python -m docs.make_peers

examples: $(READY) ## the systems of five articles at their own size, on Postgres and MySQL: the author's figures beside ours (EXAMPLES_ARGS=--small)
	@$(BIN)/python -m examples $(EXAMPLES_ARGS)

fuzz: $(READY) ## generated URLs, predicates, numbers, JSON, CSV and maps at every parser: five minutes
	CLAIMJOBS_EXAMPLES=5000 $(BIN)/python -m pytest --timeout 0 tests/cli/hostile/test_generated.py

model: $(READY) ## the model of the protocol, all that can happen to it: searched by spin
	$(BIN)/python -m tests.protocol.model

mutants: $(READY) ## lines of the protocol are changed, and `make test` must notice: 120 of them, by lot; an hour (MUTANTS_ARGS=...)
	@$(BIN)/python -m tests.mutants $(MUTANTS_ARGS)

docs: $(READY) ## these pages as a site, in docs/_build: warnings are errors, links are checked
	$(BIN)/sphinx-build --builder html --fail-on-warning --keep-going --quiet docs docs/_build

servers: $(READY) ## which database servers the tests use
	@$(BIN)/python -m servers list

clean: ## remove the environment and every cache in this folder
	rm -rf $(VENV) $(LOWEST) dist docs/_build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .mutants .coverage .coverage.*
	find claimjobs dialects servers tests benchmarks examples docs -name __pycache__ -prune -exec rm -rf {} +

# pip is upgraded first: dependency groups need 25.1.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "claimjobs needs Python 3.11 or newer: run \`make PYTHON=python3.11 ...\`" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
		{ echo "Python's venv module is missing: run \`apt-get install python3-venv\` first" >&2; exit 1; }
	@$(BIN)/python -c pass 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[embedded]' --group dev $(if $(WITH),'$(WITH)')
	@touch $@
