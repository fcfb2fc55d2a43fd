# Everything a developer types. `make` alone prints this list.
SHELL := /bin/sh
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
SNAPSHOT ?= examples/mixed-cluster/snapshot.yaml
HOST ?= 127.0.0.1
PORT ?= 9504
# Another release of Kubernetes than the pinned one, for every target that starts a control plane: KUBERNETES_VERSION=1.35.4
export DEVCLUSTER_KUBERNETES_VERSION ?= $(KUBERNETES_VERSION)
SITE ?= dist/site
VERSION ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
TIERS = $(BIN)/python -m tests.tiers

.PHONY: help run dev test test-all test-rest soak check audit unit mutants e2e e2e-report controlplane lint bench lock wheels image sbom dist screenshots site clean

help: ## print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: .venv/runtime ## set up and serve the example cluster on 127.0.0.1:9504 (SNAPSHOT=, HOST=, PORT= to change)
	@$(BIN)/longhorn-extender serve --snapshot $(SNAPSHOT) --host $(HOST) --port $(PORT)

dev: .venv/dev ## start a local cluster with Longhorn (simulated) and the extender; ARGS=--help tells more
	@$(BIN)/python -m devcluster up $(ARGS)

test: .venv/dev controlplane ## set up, and run lint, types, unit tests and the smoke tier of the end-to-end tests
	@$(TIERS) lint unit smoke

test-all: .venv/dev controlplane ## all of that, and every other end-to-end test but the campaigns
	@$(TIERS) lint unit e2e

test-rest: .venv/dev controlplane ## what test-all runs beyond test
	@$(TIERS) rest

e2e: .venv/dev controlplane ## the end-to-end tests alone, without the campaigns
	@$(TIERS) e2e

soak: .venv/dev controlplane ## repeat the campaigns with other seeds: size, bursts, backlog, DiskSchedules, fuzzing; MINUTES=30, SEED=1
	@$(TIERS) soak --minutes $(or $(MINUTES),30) --seed $(or $(SEED),1)

e2e-report: .venv/dev controlplane ## run the proposal's test plan and the comparisons as tables; ARGS="--section goal-1 ..."
	$(BIN)/python -m tests.e2e $(ARGS)

controlplane: .venv/dev ## build etcd, Kubernetes, kwok and helm, once (five to ten minutes); KUBERNETES_VERSION=1.35.4: another release
	@$(BIN)/python -m devcluster build --with-helm

check: .venv/dev ## format, lint, types, architecture, unit tests and known vulnerabilities
	@$(MAKE) --no-print-directory -j3 lint unit audit

audit: .venv/dev ## look for known vulnerabilities of the locked dependencies (asks the package index)
	@$(BIN)/python .ci/audit.py .ci/requirements/runtime.lock .ci/requirements/dev.lock .ci/requirements/site.lock

unit: .venv/dev
	@$(TIERS) unit

mutants: .venv/dev ## put each of the defects in tests/mutants into a copy of the product: its tests must fail; ARGS=--help tells more
	@$(BIN)/python -m tests.mutants $(ARGS)

lint: .venv/dev
	@$(TIERS) lint

bench: .venv/dev ## measure /filter, packing and order safety against the budgets, as tables
	$(BIN)/python -m tests.bench

lock: ## resolve the newest allowed versions into .ci/requirements/*.lock
	$(PYTHON) -m venv .venv/uv && .venv/uv/bin/pip install --quiet uv
	for part in build runtime image dev site; do sh .ci/requirements/resolve $$part || exit 1; done
	PIP="$(PYTHON) -m pip" .ci/requirements/check-wheels

wheels: ## check that every package of the image has a locked wheel for amd64 and arm64 (asks the package index)
	PIP="$(PYTHON) -m pip" .ci/requirements/check-wheels

image: ## build the image where no container engine runs (root, Debian's buildah), and run its program
	.ci/image/build

sbom: .venv/dev ## write the locked dependencies as a CycloneDX document into dist/
	@mkdir -p dist
	$(BIN)/cyclonedx-py requirements .ci/requirements/runtime.lock --pyproject pyproject.toml --output-reproducible --output-file dist/longhorn-scheduler-extender.cdx.json

dist: .venv/dev ## make what a release consists of into dist/; SIGNING_KEY=FILE signs it, ARGS=--help tells more
	@$(BIN)/python -m devcluster.release $(if $(SIGNING_KEY),--signing-key "$(SIGNING_KEY)") $(ARGS)

screenshots: .venv/dev ## take the pictures of the pages in docs/images (needs Debian's chromium)
	$(BIN)/python -m devcluster.screenshots

site: .venv/site ## build the documentation as a site into dist/site/VERSION, without network; VERSION= (that of pyproject.toml)
	@SITE_VERSION=$(VERSION) $(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env --conf-dir .ci/site --doctree-dir .venv/doctrees . $(SITE)/$(VERSION)
	@echo "$(SITE)/$(VERSION): $(BIN)/python -m http.server --bind 127.0.0.1 --directory $(SITE)"

clean: ## remove the environment and everything built
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": set PYTHON=")'
	$(PYTHON) -m venv .venv

.venv/runtime: .ci/requirements/build.lock .ci/requirements/runtime.lock pyproject.toml | .venv/bin/python
	@echo "installing the locked dependencies into .venv (once)"
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r .ci/requirements/build.lock -r .ci/requirements/runtime.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@$(BIN)/python -m compileall -q app scheduler_core
	@touch $@

.venv/dev: .ci/requirements/dev.lock .venv/runtime
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r .ci/requirements/dev.lock
	@touch $@

.venv/site: .ci/requirements/site.lock | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r .ci/requirements/site.lock
	@touch $@
