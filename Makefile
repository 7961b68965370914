# `make` prints what there is.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PYSPARK_PYTHON := $(CURDIR)/.venv/bin/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
export SPARK_LOCAL_IP := 127.0.0.1
# A lock is for all machines: no address of a registry gets into it.
UV_COMPILE := uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-emit-find-links --no-header
PYTEST := pytest --numprocesses 2 --dist loadgroup --no-loadscope-reorder
CHECKED := $(wildcard include tests dags plugins spark_jobs)

.DEFAULT_GOAL := help
.PHONY: help setup test test-deep test-release test-unit check format demo up down bench screenshots chaos soak docs lock clean

help: ## print the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

setup: ## the virtual environment and the JARs; nothing to do when they are there
	@scripts/setup.sh

demo: setup ## the main job on a real broker, Airflow, Spark and Delta, in a few minutes; cleaned up afterwards
	@ackline demo

up: setup ## the demo, in a few minutes, and left running; then prints the page's address and the login
	@ackline demo --keep

down: setup ## stop what `make up` left running
	@ackline dev down

test: setup ## the tests, in two processes: one has Spark, the other Airflow; `make test SLOW=1` adds the slow ones
	@$(PYTEST) -m "$(if $(SLOW),,not slow and )not deep and not release"

test-deep: setup ## more of each kind, before a change of what they hold lands: more kills, more tiers, clusters
	@$(PYTEST) -m deep

test-release: setup ## before a release: more deployments, lost machines, logins and restored copies, and the bench
	@$(PYTEST) -m release

test-unit: setup ## the tests without a broker, Spark or Airflow
	@$(PYTEST) -m "not real and not slow and not deep and not release"

check: setup ## ruff, mypy, deptry (what is imported is declared, what is declared imported), and the ceiling of lines
	@ruff check $(CHECKED) scripts
	@ruff format --check $(CHECKED) scripts
	@mypy $(CHECKED)
	@deptry --no-ansi .
	@pytest --quiet --no-header --no-summary tests/project/test_ceiling.py

format: setup ## let ruff lay out the code
	@ruff check --fix --select I $(CHECKED) scripts
	@ruff format $(CHECKED) scripts

bench: setup ## CPU and speed of each tier beside other programs; then what each size costs, with its aim
	@python -m tests.bench.run
	@python -m tests.bench.turns
	@python -m tests.bench.ledger_sizes
	@python -m tests.bench.partitions
	@python -m tests.bench.queries
	@python -m tests.bench.interleaved
	@python -m tests.bench.pipelines
	@python -m tests.bench.overview
	@python -m tests.bench.newest
	@python -m tests.bench.waiting
	@python -m tests.bench.trees
	@python -m tests.bench.dag_run

screenshots: setup ## the pictures of the page in docs/, in a headless Chromium that npm installs
	@SCREENSHOTS=$(CURDIR)/docs pytest tests/ui/test_browser.py -k screenshots

chaos: setup ## rules broken on purpose are found, then 100,000 random steps hold, and 1,000,000 of tables; `make chaos STEPS=N NEWEST=N SEED=N`
	@pytest tests/chaos/test_state_machine.py -k noticed
	@python -m tests.chaos.run --steps $(or $(STEPS),100000) $(if $(NEWEST),--newest $(NEWEST)) $(if $(SEED),--seed $(SEED))

soak: setup ## fifty pipelines run for an hour while everything breaks, and nothing grows; `make soak MINUTES=N SEED=N`
	@python -m tests.soak.run --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED))

docs: setup ## the documents as a site in .ackline/site, with all links checked
	@scripts/docs.sh

lock: setup ## compile the requirements.in files and ivy.xml into their locks, as new as they allow
	$(UV_COMPILE) --upgrade --output-file requirements.lock --quiet requirements.in
	$(UV_COMPILE) --upgrade --output-file tests/support/object_store/requirements.txt --quiet tests/support/object_store/requirements.in
	$(UV_COMPILE) --upgrade --output-file scripts/docs/requirements.txt --quiet scripts/docs/requirements.in
	$(UV_COMPILE) --upgrade --no-deps --output-file tests/support/git_bundle/requirements.txt --quiet tests/support/git_bundle/requirements.in
	$(UV_COMPILE) --upgrade --no-deps --output-file tests/support/deployment/requirements.txt --quiet tests/support/deployment/requirements.in
	python -m ackline.spark.jars lock

clean: ## remove the virtual environment and all caches in the tree; the JARs' cache stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name '*.egg-info' -type d -prune -exec rm -rf {} +
