# Everything here needs Python 3.11+ and pip, nothing else: the targets make their own environment in .venv.
# make test ARGS="-k postgres" passes arguments on; make PYTHON=/path/to/python chooses the interpreter.

ARGS ?=
# Processes of the test suite: for what computes, and for what mostly waits (tests/parts.py).
JOBS ?= 2
WAITING_JOBS ?= 5
# How many seeds `make simulate` runs.
SEEDS ?= 20000

# Without bytecode each process of the suite, and each that it starts, would compile everything anew.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
PY := $(VENV)/bin/python
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip -qq install
# Two stamps for one environment: the demo should not wait for type checkers and a PostgreSQL.
BASE := $(VENV)/.installed-base
DEV := $(VENV)/.installed-dev
# What the code of the wire contract is generated from when Kagzi is installed.
WIRE := hatch_build.py $(wildcard proto/kagzi/_proto/*/*.proto)
# Nothing is installed in an environment whose interpreter is gone, as after an upgrade of the system.
$(shell test -x $(PY) || rm -f $(BASE) $(DEV))

.DEFAULT_GOAL := help
# An environment whose making failed must not be taken for one.
.DELETE_ON_ERROR:
.PHONY: help demo quick test check format pythons bench bench-guard browser screenshots campaigns simulate pgbouncer failover clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(BASE) ## Watch a workflow survive kill -9 (under 30 seconds)
	@$(PY) examples/demo/main.py $(ARGS)

# What can be said without PostgreSQL, processes and long searches.
QUICK := tests/access tests/coordinator tests/core tests/engine tests/sdk tests/store

quick: $(DEV) ## Run what answers in about a minute: rules, replay, engine, SQLite
	$(PY) -m pytest -n $(JOBS) -m "not postgres and not faults and not slow" $(QUICK) $(ARGS)

# Three parts (tests/parts.py): what waits wants more processes than there are cores, what computes takes the time that it leaves,
# and what measures wants no other beside it.
test: $(DEV) ## Run the whole suite, PostgreSQL included
	@$(PY) -m scripts.suite computing:$(JOBS)+waiting:$(WAITING_JOBS) alone:0 -- $(ARGS)

pythons: $(DEV) ## Run a quick part of the suite on every Python from 3.11 up that is here, pyenv's included
	$(PY) -m scripts.pythons $(ARGS)

check: $(DEV) ## Lint, formatting, types, who imports whom
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

format: $(DEV) ## Fix what ruff can fix
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(DEV) ## Measure Kagzi side by side with its peers
	$(PY) -m benchmarks $(ARGS)

bench-guard: $(DEV) ## Hold the instructions of W1, W2 and the hot statements against their bounds
	$(PY) -m benchmarks.guard $(ARGS)

browser: $(DEV) ## Try the dashboard in Chromium, which is installed first where it is missing (Debian, as root)
	@command -v chromium >/dev/null || (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y chromium)
	$(PY) -m pytest -n $(JOBS) tests/browser $(ARGS)

screenshots: $(DEV) ## Take the pictures of the dashboard for the documents anew
	$(PY) -m scripts.screenshots

# The tests that tests/campaigns.py shortens in the suite, in full length; a quarter of an hour or so.
CAMPAIGNS := tests/core/test_cron.py tests/http/test_bad_requests.py tests/http/test_schemathesis.py tests/rpc/test_bad_calls.py \
	tests/sdk/replay tests/simulation tests/store/postgres/test_pgbouncer.py tests/store/test_equivalence.py tests/store/postgres/test_family_races.py

campaigns: $(DEV) ## Run the searches of the suite in full length
	KAGZI_TEST_CAMPAIGNS=long $(PY) -m pytest -n $(JOBS) --dist worksteal $(CAMPAIGNS) $(ARGS)
	KAGZI_TEST_CAMPAIGNS=long $(PY) -m pytest -n 0 tests/faults/test_floods.py tests/faults/test_families.py \
		tests/faults/test_transactional_steps.py $(ARGS)

simulate: $(DEV) ## Run a long simulation campaign: make simulate SEEDS=100000
	$(PY) -m kagzi.testing.simulation --seeds $(SEEDS) $(ARGS)

pgbouncer: $(DEV) ## Try everything behind a real PgBouncer (Debian: apt install pgbouncer)
	$(PY) -m scripts.pgbouncer $(ARGS)

failover: $(DEV) ## Kill primaries of a Patroni cluster under load (Debian: apt install patroni etcd-server postgresql-15)
	$(PY) -m scripts.failover $(ARGS)

clean: ## Remove the environment and everything built or cached
	rm -rf $(VENV) .venv-pythons build dist src/kagzi/_proto .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A name on PATH is not enough: a shim of pyenv may exist and refuse to run, and Debian's Python may come without ensurepip.
# So each candidate is asked. The first that answers makes the environment.
$(PY):
	@for python in $(if $(PYTHON),"$(PYTHON)",python3.14 python3.13 python3.12 python3.11 python3 python); do \
		if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
			echo "Creating $(VENV) with $$("$$python" --version) ..."; \
			exec "$$python" -m venv --clear $(VENV); \
		fi; \
	done; \
	echo "Kagzi needs Python 3.11 or newer with the venv module (Debian: apt install python3-venv)." >&2; \
	echo "$(if $(PYTHON),PYTHON=$(PYTHON) is not one,None was found on PATH). Choose one with: make PYTHON=/path/to/python3" >&2; \
	exit 1

# Without build hooks: the demo has no server, so it need not wait for the compiler of the wire contract either.
$(BASE): pyproject.toml | $(PY)
	@echo "Installing Kagzi ..."
	@HATCH_BUILD_NO_HOOKS=true $(PIP) --editable .
	@touch $@

$(DEV): pyproject.toml $(WIRE) | $(PY)
	@echo "Installing Kagzi and what its tests need (a minute or so the first time) ..."
	@$(PIP) --editable '.[dev]'
	@touch $(BASE) $@
