# make setup | up | test | test-matrix | check-deploy | test-deploy | test-load | soak | lint | gen | bench | bench-planner | clean
# Everything runs from .venv; `make up ARGS="--workers 2"` and `make test ARGS="-k tokens"` pass on.

PYTHON3 ?= python3
# The build of torch to install where the environment has none yet (2.11 or newer).
TORCH ?= torch==2.13.0

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
DEPLOY_STAMP := $(VENV)/.deploy-done
BROWSER_STAMP := $(VENV)/.browser-done
CODE := lib services/router services/planner services/worker cli deploy tests $(if $(wildcard benchmarks/*.py),benchmarks)

.PHONY: setup up test test-matrix check-deploy test-deploy test-load check-browser test-browser lint gen bench bench-planner clean

setup: $(STAMP)

$(STAMP): pyproject.toml scripts/setup.sh
	PYTHON3="$(PYTHON3)" TORCH="$(TORCH)" scripts/setup.sh $(VENV)
	@touch $@

up: setup
	@exec $(BIN)/outrider up $(ARGS)

# Two processes of tests with one thread each: many tests wait for time to pass, and a second OpenMP
# thread on a busy core makes every parallel region wait. `make test JOBS=0` runs in one process.
JOBS ?= 2
test: setup
	@scripts/ensure-redis.sh
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --no-loadscope-reorder $(ARGS)

# The five laws over all options, drafters, lengths, devices and families (a quarter of an hour).
test-matrix: setup
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m matrix tests/matrix $(ARGS)

# The deployment as the platform's tools judge it, in seconds: compose, kustomize, promtool, hadolint.
# Tools that are missing are fetched; what cannot be had is skipped, and the test says so.
check-deploy: $(DEPLOY_STAMP)
	@scripts/test-deploy.sh short $(ARGS)

# The same and the real thing: every panel and rule asked of a real Prometheus over a real stack;
# images are built, and the containers of a running stack are killed, paused and replaced under load
# (half an hour on two busy cores, ten minutes more the first time). Nothing is skipped: what the machine
# refuses is a failure.
test-deploy: $(DEPLOY_STAMP)
	@scripts/test-deploy.sh long $(ARGS)

$(DEPLOY_STAMP): $(STAMP)
	@$(BIN)/python -m pip install --quiet -e ".[deploy]"
	@touch $@

# The pages in a real Chromium, which is installed where it is missing; pictures in artefacts/browser.
# Files are shared out by their number of tests, the largest first.
BROWSER_TESTS ?= browser
test-browser: $(BROWSER_STAMP)
	@scripts/ensure-chromium.sh
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -p no:schemathesis \
	  -m "$(BROWSER_TESTS)" tests/browser $(ARGS)

# The same without whole stacks and without variants, in under a minute.
check-browser: BROWSER_TESTS = browser and not e2e and not long
check-browser: test-browser

$(BROWSER_STAMP): $(STAMP)
	@$(BIN)/python -m pip install --quiet -e ".[browser]"
	@touch $@

# A router under load: overload, slow readers, huge prompts, made-up requests, aborts, with a line of
# figures for each (some ten minutes; wants the machine for itself). `make test` has short forms.
test-load: setup
	@OMP_NUM_THREADS=1 OUTRIDER_LOAD=long $(BIN)/python -m pytest tests/load -m load -s --timeout 1200 $(ARGS)

# Thousands of rounds at random load, a few minutes; `make test` has a short form.
SOAK_ROUNDS ?= 20000
soak: setup
	@OMP_NUM_THREADS=1 OUTRIDER_SOAK_ROUNDS=$(SOAK_ROUNDS) $(BIN)/python -m pytest tests/soak \
	  -m soak --timeout 0 $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports --no-logo
	$(BIN)/buf lint proto

gen: setup
	proto/generate.sh

bench: setup
	$(BIN)/python -m benchmarks $(ARGS)

# Every claim about the planner, against simulated worlds (about half an hour on two cores),
# and how many workers one planner holds.
bench-planner: setup
	-@OMP_NUM_THREADS=1 $(BIN)/outrider simulate --suite targets \
	  --json benchmarks/results/planner_targets.json $(ARGS)
	$(if $(wildcard benchmarks/planner_scale.py),@$(BIN)/python -m benchmarks.planner_scale)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
