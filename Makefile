# Encamp's two commands are `make run` and `make test`. Each installs what is missing first.

.DEFAULT_GOAL := help
.PHONY: help setup run demo-slurm demo-gridengine test lab-kvm lab-kvm-smoke check bench docs \
	kernel clean

PYTHON := .venv/bin/python
PYTEST_ARGUMENTS ?=
# Tests spend much of their time waiting for machines and daemons: there are more of them than
# processors. More than four at a time were never tried.
TESTS_AT_ONCE ?= $(shell n=$$(($$(nproc) + 2)); echo $$((n < 4 ? n : 4)))

# The command line is started thousands of times: Python compiles it once, not each time.
unexport PYTHONDONTWRITEBYTECODE
# Few have this, and what is tested should be what everybody sees.
unexport PYTHONUNBUFFERED
export HYPOTHESIS_STORAGE_DIRECTORY := $(CURDIR)/.cache/hypothesis
# What root has built for everybody on this host is not the tests' business.
test: export ENCAMP_SYSTEM_HOME := $(CURDIR)/.cache/no-system-home

# Tests and demonstrations also run as other accounts, if root runs them. These have to read all this.
REACHABLE := $(shell tools/reachable && echo yes)

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 26

setup: ## install what is missing to run and to test
	@tools/setup test

run: ## run a sample job in a fresh machine
	@tools/setup run
	@.venv/bin/encamp run --timings -- sh -s < examples/hello.sh

check: ## format, lint, types and layers; seconds
	@tools/setup test
	@.venv/bin/ruff format --check --quiet --diff .
	@.venv/bin/ruff check --quiet .
	@.venv/bin/mypy --no-error-summary
	@.venv/bin/lint-imports --cache-dir .cache/import-linter > .cache/layers.log || \
		{ cat .cache/layers.log; exit 1; }
	@echo "Format, lint, types and layers are in order."

bench: ## run the benchmarks
	@tools/setup bench
	@$(PYTHON) -m bench

docs: ## regenerate the command reference and tables from the code
	@tools/setup run
	@$(PYTHON) -m encamp.cli.reference > docs/.reference.new
	@mv docs/.reference.new docs/reference.md
	@$(PYTHON) -m encamp.describe.manual docs/*.md
	@$(PYTHON) -m encamp.agent.commands.manual docs/commands.md
	@$(PYTHON) -m encamp.sim.manual docs/simulation.md

kernel: ## build the kernel of user-mode Linux machines, from Debian's source (minutes)
	@tools/kernel

clean: ## remove what was built and installed here (machines and images are kept elsewhere)
	@for makefile in src/encamp/*/*/Makefile; do \
		$(MAKE) --no-print-directory --silent -C $$(dirname $$makefile) clean; done
	@rm -rf .venv .cache dist docs/.reference.new
	@find src tests bench -name __pycache__ -prune -exec rm -rf {} +

# What concerns machines, as far as it is different under KVM.
LAB_TESTS ?= tests/site/test_machines_suspended.py tests/site/test_machines_clones.py \
	tests/site/test_templates.py tests/machines/test_accelerator.py

ifeq ($(REACHABLE),yes)

lab-kvm: lab-kvm-smoke ## the smoke and the tests about machines, where KVM works (half an hour, as root)
	@tools/lab-kvm 'python -m pytest -o timeout=900 $(LAB_TESTS)'

lab-kvm-smoke: ## try what KVM changes, in a machine that has it even if this host does not (as root)
	@tools/setup test
	@tools/lab-kvm tools/lab-kvm-smoke

demo-slurm: ## run jobs of three environments in a private Slurm site (as root)
	@tools/setup slurm
	@.venv/bin/encamp batch try slurm

demo-gridengine: ## the same with Grid Engine
	@tools/setup gridengine
	@.venv/bin/encamp batch try gridengine

test: check ## check, then run all tests (some of them: make test PYTEST_ARGUMENTS='-k guest')
	@tools/run-tests $(PYTHON) -m pytest -n $(TESTS_AT_ONCE) --dist=loadgroup --no-loadscope-reorder \
		$(PYTEST_ARGUMENTS)

else

demo-slurm demo-gridengine test lab-kvm lab-kvm-smoke:
	@tools/reachable $@

endif
