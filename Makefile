# Two commands: `make demo` and `make test`. Each sets up what it needs in .venv, says what it does, and reuses what is there.
# The slow tests have an environment of their own, .venv-slow, with the large packages that Privet integrates with.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
SLOW := .venv-slow
TORCH := $(shell sed -nE 's/^ *"(torch[<>=][^"]*)",$$/\1/p' pyproject.toml)

# Threads that wait by spinning starve each other as soon as anything else runs on the machine.
export OMP_WAIT_POLICY ?= PASSIVE

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint types imports tests bench docs format clean

help: ## Show what make can do
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-10s %s\n", $$1, $$2}'

$(BIN)/python $(SLOW)/bin/python:
	@venv=$(@:/bin/python=); \
	python=$$(command -v $(PYTHON) || command -v python3) || { echo "Privet needs Python 3.11 or newer: install it, or name yours with 'make PYTHON=/path/to/python'."; exit 1; }; \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Privet needs Python 3.11 or newer, and $$python is $$("$$python" -V). Name another with 'make PYTHON=...'."; exit 1; }; \
	echo "Making $$venv with $$("$$python" -V)"; \
	"$$python" -m venv "$$venv" || { rm -rf "$$venv"; echo "A virtual environment could not be made: Python's venv module is missing or the disk is full (on Debian: apt install python3-venv)."; exit 1; }

# $(call install,ENVIRONMENT,EXTRAS): the package with the named extras. torch comes first, alone: with many packages to choose
# together, pip could take a build of it for graphics cards, which is ten times as large.
define install
	@mkdir -p $(@D)
	@$(1)/bin/python -m pip --version >/dev/null 2>&1 || { echo "$(1) has no pip: remove it with 'make clean' and run make again."; exit 1; }
	@echo "Installing Privet$(2) into $(1) (PyTorch is large: the first time takes a few minutes)"
	@for wanted in '$(TORCH)' '-e.$(2)'; do \
	  $(1)/bin/python -m pip install --quiet --disable-pip-version-check "$$wanted" 2> >(grep -vE '^WARNING: (Location|Retrying)' >&2) || { echo "The install failed: pip's message is above. Check the network and the free disk space, then run make again."; exit 1; }; \
	done
	@touch $@
endef

$(STAMPS)/run: pyproject.toml | $(BIN)/python
	$(call install,$(VENV),)

$(STAMPS)/dev: pyproject.toml | $(BIN)/python
	$(call install,$(VENV),[dev$(comma)docs])
	@touch $(STAMPS)/run

$(SLOW)/.stamps/slow: pyproject.toml | $(SLOW)/bin/python
	$(call install,$(SLOW),[dev$(comma)slow])

comma := ,

demo: $(STAMPS)/run ## Four private methods on MNIST, attacked, on one page, in under five minutes
	@echo "The demo: train private classifiers in four ways, account for them, attack them, write runs/demo/report.html"
	@$(BIN)/privet demo

test: lint types imports tests docs ## Everything that must hold

lint: $(STAMPS)/dev ## Ruff, lint and format
	@echo "Ruff"; $(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet . || { echo "Ruff found something: 'make format' mends most of it."; exit 1; }

types: $(STAMPS)/dev ## The strict type checker on src
	@echo "Types"; $(BIN)/mypy

imports: $(STAMPS)/dev ## Imports point backwards along the data flow
	@echo "Imports"; $(BIN)/lint-imports

tests: $(STAMPS)/dev ## The tests
	@echo "Tests"; $(BIN)/pytest -q -n 2 --dist worksteal -m "not slow"

test-slow: $(SLOW)/.stamps/slow ## The slow tests: all traps, all audits, transformers, lightning and other large packages
	@echo "Slow tests"; $(SLOW)/bin/pytest -q -n 2 --dist worksteal -m slow

bench: $(STAMPS)/dev ## The benchmarks (long; run nothing beside them)
	@for benchmark in benchmarks/[a-z]*.py; do echo "$$benchmark"; $(BIN)/python "$$benchmark" || exit 1; done

docs: $(STAMPS)/dev ## Build the documentation into site/
	@echo "Docs"; NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

format: $(STAMPS)/dev ## Let ruff mend what it can
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format --quiet .

clean: ## Remove what the builds made (not the data cache, not runs/)
	@rm -rf $(VENV) $(SLOW) site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
