# Two commands do everything: `make demo` and `make test`. Both set up a virtual environment first; the set-up is
# cached (uv keeps every downloaded wheel) and resumable (run it again after an interruption).
# The first of these that is new enough. It is run, not just looked up: a shim of pyenv may lead nowhere.
ifndef PYTHON
PYTHONS := python3 python3.13 python3.12 python3.11
PYTHON := $(shell for name in $(PYTHONS); do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
endif
REQUIRE_PYTHON = @'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	{ echo "no Python 3.11 or newer: tried $(or $(PYTHON),$(PYTHONS)). Install one, or run make PYTHON=/path/to/python3"; exit 1; }
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ais-loader-ready
# What an editable installation copies or compiles. ais_loader/version.py has the version.
PACKAGE := setup.cfg setup.py pyproject.toml ais_loader/version.py storage_node/store/_native.c \
	$(wildcard storage_node/store/_*.h) ais_loader/wire/_crc32c.c ais_loader/wire/_crc32c.h
# What is broken is known after eight failures. No run is ended for being slow: tests/run_bounds.py ends what stands still.
# Python 3.11 can fail at showing a stack as code while other threads do the same (its compiler counts the depth of what
# it reads for all of them together): `native` reads no code.
FAILURES := --maxfail 8 --tb native
# Each run keeps the times of its tests: `python -m scripts.test_times` prints the latest.
TIMES = --junitxml build/test-times/$(@:test-%=%).xml
# Processes that run tests side by side. A file stays in one, with its nodes, and each process has its files in the order
# that one alone has: what forks comes before what leaves gRPC running.
# Quick tests rarely wait, and each process that runs them imports torch; slow ones wait for the processes that they start.
WORKERS ?= 2
SLOW_WORKERS ?= 3
SIDE_BY_SIDE := --dist loadfile --no-loadscope-reorder
# Folders whose quick tests have commands of their own; all others are the core.
GATEWAY_TESTS := tests/gateway
INTEGRATIONS_TESTS := tests/integrations tests/examples tests/ui
DOCS_TESTS := tests/docs
CORE_TESTS := $(addprefix --ignore=,$(GATEWAY_TESTS) $(INTEGRATIONS_TESTS) $(DOCS_TESTS))
QUICK = $(BIN)/python -m pytest --numprocesses $(WORKERS) $(SIDE_BY_SIDE) $(FAILURES) $(TIMES) -m "not slow"
# The budget of `make test` (CONTRIBUTING.md) begins with the number of its cases.
QUICK_CASES := 5500
# What the product may grow to, in lines of Python and C. Only a commit of its own, with a reason, raises it.
PRODUCT_LINES := 135130
# Seeds, and the tests in which several nodes or drives share objects by their identities.
SEEDS ?= 1 2 3 4 5 6 7 8 9 10
PLACING_TESTS := $(addprefix tests/,batch cluster etl lane limits promote repair replication services snapshots store)

# Environments of the libraries that train on top of us: they pin other versions than ours, and each other's apart.
# Each is a folder .venv-NAME of what tests/front/requirements-NAME.txt names, and of this tree.
FRONTS := nemo front frameworks clients
FRONT_TESTS_nemo := tests/front/lhotse tests/front/nemo
FRONT_TESTS_frameworks := tests/front/frameworks
FRONT_TESTS_clients := tests/front/clients
FRONT_TESTS_front := $(filter-out tests/front/nemo tests/front/frameworks tests/front/clients tests/front/__pycache__,$(patsubst %/,%,$(wildcard tests/front/*/)))

# Emulators of clouds, each installed into one folder, of the npm registry and as a Go module.
EMULATORS := .venv-emulators
AZURITE := 3.37.0
FAKE_GCS := v1.56.1

# The files of a release.
DIST ?= dist

.PHONY: help setup dist dist-of demo test test-gateway test-integrations test-docs test-slow test-seeds test-exhaustive test-remote test-doors test-front $(FRONTS:%=test-front-%) works-with bench bench-quick check docs protos clean

help:
	@echo "make demo       set up, then train a small speech model through GetBatch on real data"
	@echo "make test       set up, then run the quick tests of the core"
	@echo "make test-gateway, make test-integrations, make test-docs: the quick tests of these"
	@echo "make test-slow  set up, then run the long tests"
	@echo "make test-seeds set up, then run the tests of clusters with ten seeds, which place objects otherwise"
	@echo "make test-exhaustive  set up, then run what repeats the long tests in more places, longer, or by other seeds"
	@echo "make test-remote  set up emulators of Azure and Google (needs npm and Go), then run one suite over all kinds of"
	@echo "                remote storage; ONLY=tests/remote runs more"
	@echo "make test-doors run real clients of the gateway, such as boto3, rclone and DuckDB, each in an environment below"
	@echo "                build/doors, and ceph's s3-tests; ONLY=tests/doors/test_clients.py runs the clients alone"
	@echo "make test-front set up environments with Lhotse and NeMo, with Lhotse 2, WebDataset and Ray Data, and with"
	@echo "                Lightning, accelerate, transformers and Grain, and with clients from pandas to Energon; test in each"
	@echo "make test-front-nemo, -front, -frameworks, -clients: one of them; ONLY=tests/front/lhotse runs that alone"
	@echo "make works-with run a program of each client, then write their lines in docs/works-with.md"
	@echo "make bench-quick  set up, then compare ratios of rates to the recorded ones (2 minutes; on a quiet machine)"
	@echo "make bench      set up, then measure a node and a cluster, and write benchmarks/report (15 minutes)"
	@echo "make check      set up, then lint, type-check, compare the generated protobuf modules, and check the links of the pages"
	@echo "make docs       set up, then write all pages as HTML to build/docs"
	@echo "make protos     write the generated protobuf modules anew"
	@echo "make dist       set up, then build and check the files of a release of the last commit; says which it cannot build, and why"
	@echo "WORKERS=N runs quick tests in N processes side by side instead of 2, SLOW_WORKERS=N slow ones instead of 3"
	@echo "VENV=DIR uses an environment elsewhere, PYTHON=... another interpreter (3.11 or newer)"

setup: $(STAMP)

$(STAMP): $(PACKAGE)
	$(REQUIRE_PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "python venv could not be made; on Debian: apt-get install python3-venv"; exit 1; }
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	@echo "Installing the packages into $(VENV) (the first time downloads several GB with torch; a re-run resumes)"
	@# A module for one version of Python would be imported before the one for all of them.
	@rm -f ais_loader/wire/*.cpython-*.so storage_node/store/*.cpython-*.so
	$(BIN)/uv pip install --python $(BIN)/python --editable '.[dev]'
	@touch $@

demo: setup
	$(BIN)/python -m examples.speech.train

test: setup
	$(QUICK) $(CORE_TESTS)

test-gateway: setup
	$(QUICK) $(GATEWAY_TESTS)

test-integrations: setup
	$(QUICK) $(INTEGRATIONS_TESTS)

test-docs: setup
	$(QUICK) $(DOCS_TESTS)

# Properties draw at most 50 examples in the quick set (tests/example_count.py).
test-slow: export TESTS_EXAMPLES := all
test-slow: setup
	$(BIN)/python -m pytest --numprocesses $(SLOW_WORKERS) $(SIDE_BY_SIDE) $(FAILURES) $(TIMES) -m "slow and not exhaustive"

# Failures do not end the other seeds.
test-seeds: setup
	for seed in $(SEEDS); do TESTS_SEED=$$seed $(BIN)/python -m pytest --numprocesses $(WORKERS) $(SIDE_BY_SIDE) \
		--tb native -q -m "not slow" $(PLACING_TESTS) || failed="$$failed $$seed"; done; \
		test -z "$$failed" || { echo "seeds with failures:$$failed (repeat one with TESTS_SEED=N)"; exit 1; }

# The day draws the examples and the places of objects; the head of the run names its seed.
test-exhaustive: export TESTS_SEED ?= $(shell date +%Y%m%d)
test-exhaustive: export TESTS_EXAMPLES := all
test-exhaustive: setup
	$(BIN)/python -m pytest --numprocesses $(SLOW_WORKERS) $(SIDE_BY_SIDE) $(FAILURES) $(TIMES) --timeout 3600 -m "exhaustive or (hypothesis and not slow)"

$(EMULATORS)/.azurite-$(AZURITE):
	@npm --version >/dev/null 2>&1 || { echo "npm is not installed, which Azurite needs; on Debian: apt-get install npm"; exit 1; }
	npm install --prefix $(EMULATORS) --no-audit --no-fund --ignore-scripts --loglevel error azurite@$(AZURITE)
	@touch $@

$(EMULATORS)/.fake-gcs-$(FAKE_GCS):
	@go version >/dev/null 2>&1 || { echo "Go is not installed, which fake-gcs-server needs; on Debian: apt-get install golang"; exit 1; }
	GOBIN=$(abspath $(EMULATORS))/bin go install github.com/fsouza/fake-gcs-server@$(FAKE_GCS)
	@touch $@

# Elsewhere, what needs an emulator is skipped.
test-remote: setup $(EMULATORS)/.azurite-$(AZURITE) $(EMULATORS)/.fake-gcs-$(FAKE_GCS)
	AIS_LOADER_EMULATORS=$(abspath $(EMULATORS)) $(BIN)/python -m pytest $(FAILURES) $(TIMES) $(or $(ONLY),tests/remote/test_backend.py tests/remote/test_services.py)

# One process: a gateway serves all clients of a kind of store. What cannot be installed is skipped, with the reason.
test-doors: setup
	$(BIN)/python -m pytest $(FAILURES) $(TIMES) --timeout 3600 -rs $(or $(ONLY),tests/doors)

.venv-%/.ais-loader-ready: tests/front/requirements-%.txt $(PACKAGE)
	$(REQUIRE_PYTHON)
	@test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	@test -x .venv-$*/bin/uv || .venv-$*/bin/python -m pip install --quiet uv
	@echo "Installing what $< names into .venv-$* (the first time downloads; a re-run resumes)"
	.venv-$*/bin/uv pip install --python .venv-$*/bin/python --requirement $< --editable '.[archives,fsspec,store,test,torch]'
	@touch $@

# One process: importing NeMo takes half a minute.
$(FRONTS:%=test-front-%): test-front-%: .venv-%/.ais-loader-ready
	AIS_LOADER_FRONT=$* .venv-$*/bin/python -m pytest $(FAILURES) $(TIMES) $(or $(ONLY),$(wildcard $(FRONT_TESTS_$*)))

test-front: $(FRONTS:%=test-front-%)

works-with: .venv-clients/.ais-loader-ready
	.venv-clients/bin/python -m scripts.works_with

bench: setup
	$(BIN)/python -m benchmarks.report

bench-quick: setup
	$(BIN)/python -m benchmarks.report --quick

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m scripts.check_docstrings
	$(BIN)/python -m protos.generate --check
	$(BIN)/python -m pytest --collect-only -q -q --no-summary -m "not slow" --at-most $(QUICK_CASES)
	$(BIN)/python -m scripts.structure --lines-at-most $(PRODUCT_LINES)

# Links of pages that lead nowhere are errors.
docs: setup
	$(BIN)/python -m scripts.build_docs build/docs

protos: setup
	$(BIN)/python -m protos.generate

# The committed files, so that nothing else is in a release.
dist: setup
	rm -rf build/dist
	mkdir -p build/dist/tree
	git archive HEAD | tar --extract --directory build/dist/tree
	$(MAKE) --no-print-directory dist-of TREE=build/dist/tree

# Of the files in TREE: all that can be built, or with DIST_OPTIONS=--own the least. The wheels are built from the source
# distribution, which is therefore complete.
dist-of:
	$(BIN)/python -m scripts.release_files $(TREE) $(DIST) $(DIST_OPTIONS)

clean:
	rm -rf build dist *.egg-info storage_node/store/*.so .pytest_cache .mypy_cache .ruff_cache
