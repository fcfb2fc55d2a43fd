# Everything a developer types. `make` alone prints this list.
SHELL := /bin/sh
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
SNAPSHOT ?= examples/mixed-cluster/snapshot.yaml
HOST ?= 127.0.0.1
PORT ?= 9504
# Many unit tests wait for timers, so more of them than there are processors keep these busy. The end-to-end tests have time bounds,
# which hold with one test per processor.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(2 * (os.cpu_count() or 1))')
# Another release of Kubernetes than the pinned one, for every target that starts a control plane: KUBERNETES_VERSION=1.35.4
export DEVCLUSTER_KUBERNETES_VERSION ?= $(KUBERNETES_VERSION)
# A machine that other work slows down misses a time bound now and then: the tests that failed run once more, alone. A second failure counts.
E2E = $(BIN)/pytest -n auto -m e2e --durations=25 || { [ $$? = 1 ] && echo "what failed runs once more, alone" \
	&& $(BIN)/pytest -n 0 -m e2e --last-failed --last-failed-no-failures=none --maxfail=1; }

.PHONY: help run dev test check audit unit fuzz e2e e2e-report controlplane lint bench lock wheels image sbom screenshots clean

help: ## print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: .venv/runtime ## set up and serve the example cluster on 127.0.0.1:9504 (SNAPSHOT=, HOST=, PORT= to change)
	@$(BIN)/longhorn-extender serve --snapshot $(SNAPSHOT) --host $(HOST) --port $(PORT)

dev: .venv/dev ## start a local cluster with Longhorn (simulated) and the extender; ARGS=--help tells more
	@$(BIN)/python -m devcluster up $(ARGS)

test: .venv/dev lint controlplane ## set up and run every check and every test, the end-to-end ones included
	$(BIN)/pytest -n $(WORKERS) -m "not e2e"
	$(E2E)

e2e: .venv/dev controlplane ## run the end-to-end tests alone
	$(E2E)

e2e-report: .venv/dev controlplane ## run the proposal's test plan and the comparisons as tables; ARGS="--section goal-1 ..."
	$(BIN)/python -m tests.e2e $(ARGS)

controlplane: .venv/dev ## build etcd, Kubernetes, kwok and helm, once (five to ten minutes); KUBERNETES_VERSION=1.35.4: another release
	@$(BIN)/python -m devcluster build --with-helm

check: .venv/dev ## format, lint, types, architecture, unit tests and known vulnerabilities
	@$(MAKE) --no-print-directory -j2 lint unit
	@$(MAKE) --no-print-directory audit

audit: .venv/dev ## look for known vulnerabilities of the locked dependencies (asks the package index)
	$(BIN)/pip-audit --progress-spinner off --disable-pip --require-hashes -r .ci/requirements/runtime.lock -r .ci/requirements/dev.lock

unit: .venv/dev
	$(BIN)/pytest -n $(WORKERS) -m "not e2e" -q

fuzz: .venv/dev controlplane ## try many mutated requests, snapshots, policies and clusters; EXAMPLES=1000 of each kind (`make test` tries 60); and 3,000 operations on DiskSchedules
	FUZZ_EXAMPLES=$(or $(EXAMPLES),5000) $(BIN)/pytest -n auto -q tests/fuzz tests/property/test_classic_rules.py
	DISK_SCHEDULE_OPERATIONS=3000 DISK_SCHEDULE_STARTS=34 $(BIN)/pytest -n 1 -m e2e -q tests/e2e/test_disk_schedule_campaign.py tests/e2e/test_disk_schedule_starts.py

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: .venv/dev ## measure /filter, packing and order safety against the budgets, as tables
	$(BIN)/python -m tests.bench

lock: ## resolve the newest allowed versions into .ci/requirements/*.lock
	$(PYTHON) -m venv .venv/uv && .venv/uv/bin/pip install --quiet uv
	for part in build runtime image dev; do sh .ci/requirements/resolve $$part || exit 1; done
	PIP="$(PYTHON) -m pip" .ci/requirements/check-wheels

wheels: ## check that every package of the image has a locked wheel for amd64 and arm64 (asks the package index)
	PIP="$(PYTHON) -m pip" .ci/requirements/check-wheels

image: ## build the image where no container engine runs (root, Debian's buildah), and run its program
	.ci/image/build

sbom: .venv/dev ## write the locked dependencies as a CycloneDX document into dist/
	@mkdir -p dist
	$(BIN)/cyclonedx-py requirements .ci/requirements/runtime.lock --pyproject pyproject.toml --output-reproducible --output-file dist/longhorn-scheduler-extender.cdx.json

screenshots: .venv/dev ## take the pictures of the pages in docs/images (needs Debian's chromium)
	$(BIN)/python -m devcluster.screenshots

clean: ## remove the environment and everything built
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": set PYTHON=")'
	$(PYTHON) -m venv .venv

.venv/runtime: .ci/requirements/build.lock .ci/requirements/runtime.lock pyproject.toml | .venv/bin/python
	@echo "installing the locked dependencies into .venv (once)"
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r .ci/requirements/build.lock -r .ci/requirements/runtime.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

.venv/dev: .ci/requirements/dev.lock .venv/runtime
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r .ci/requirements/dev.lock
	@touch $@
