# `make demo` and `make test` each do everything: on a bare Debian with git, make and python3 they need nothing before them.

PYTHON ?= python3
PIP = .venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt
# compat: a path in site-packages. The import hook that an editable install has otherwise costs every Python start 25 ms.
PIP_INSTALL = $(PIP) --config-settings editable_mode=compat --no-compile
# Not by pip, which would do it for 180 MB of sources, of which a tenth is ever loaded: the rest is compiled when it is.
# What torch loads is compiled here: containers have .venv read-only, and processes that load it at the same time each would.
COMPILE = env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -c 'import torch._dynamo, torch.distributed.run'
export PYTHON

.PHONY: help demo test images lint docs docs-serve bench cluster slurm cluster-down clean
.DEFAULT_GOAL := help

help:
	@echo "make demo          train on two simulated nodes of this machine"
	@echo "make test          lint, types and all tests, with the fake clusters (root on Debian; else that part is left out)"
	@echo "make lint          ruff, mypy, vermin"
	@echo "make docs          the pages as a site, in build/site; make docs-serve shows it while you write"
	@echo "make cluster       start the fake cluster for use by hand; make slurm starts a fake Slurm; make cluster-down removes both"
	@echo "make bench         the benchmarks against pdsh, clush, ssh, rsync, srun"
	@echo "make clean         remove the fake clusters, .venv and caches"

demo: .venv/with-torch
	.venv/bin/python -m launcher submit --backend local --nodes 2 --nproc-per-node 2 --source-dir train_src \
		-- train_multinode.py --total_epochs 10 --save_every 5

test:
	@scripts/packages test
	@$(MAKE) --no-print-directory --jobs=2 .venv/with-dev images
	@scripts/test $(PYTEST_ARGS)

# Beside pip, which has one core busy for a minute. Where it fails, scripts/test says what that means.
images:
	-@$(PYTHON) tests/cluster/cluster images

lint: .venv/with-dev
	@scripts/lint

# What is said of mkdocs itself, and of its theme, is no fault of these pages.
docs docs-serve: export NO_MKDOCS_2_WARNING := 1

docs: .venv/with-dev
	@.venv/bin/mkdocs build --strict --quiet
	@echo "The site is in build/site; begin with index.html"

docs-serve: .venv/with-dev
	@.venv/bin/mkdocs serve --strict --watch launcher --watch scripts

bench: .venv/with-dev
	@scripts/packages bench
	@scripts/bench $(BENCH_ARGS)

cluster: .venv/with-torch
	@scripts/packages test
	@.venv/bin/python tests/cluster/cluster up

slurm: .venv/with-torch
	@scripts/packages test
	@.venv/bin/python tests/cluster/cluster slurm

cluster-down:
	@$(PYTHON) tests/cluster/cluster slurm-down
	@$(PYTHON) tests/cluster/cluster down

clean:
	@if [ -e .cluster ]; then $(MAKE) --no-print-directory cluster-down; fi
	rm -rf .venv .cluster .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/pip:
	@scripts/packages venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "make needs Python 3.11 or newer, whose packages constraints.txt pins; say which: make PYTHON=… (for the launcher alone 3.10 does: pip install .)")'
	@echo "Making .venv"
	@rm -rf .venv && $(PYTHON) -m venv .venv
# The one that comes with Python takes twice as long to find out what to install.
	@$(PIP) --upgrade pip

# torch is pinned in constraints.txt: an open range would fetch several gigabytes of CUDA libraries on some machines.
.venv/with-torch: pyproject.toml constraints.txt | .venv/bin/pip
	@echo "Installing the launcher and torch into .venv"
	@$(PIP_INSTALL) --editable '.[torch]'
	@$(COMPILE)
	@touch $@

# All of it in one go: what pip finds out and builds for one of two installations it would do again for the other.
.venv/with-dev: pyproject.toml constraints.txt | .venv/bin/pip
	@echo "Installing the launcher, torch and the development tools into .venv"
	@$(PIP_INSTALL) --editable '.[torch,dev,docs]'
	@$(COMPILE)
	@touch .venv/with-torch $@
