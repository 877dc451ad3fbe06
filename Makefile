# Every target sets up what it needs; nothing has to be installed by hand but python3 (3.11+), make and git.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SHARED ?= ../shared
SCHEMAS ?= .venv-schemas
ENRICH ?= .venv-enrich
BENCH ?= .venv-bench
NODE_MCP ?= .node-mcp
LIVE := .venv-live
SHELL := /bin/bash
ADAPTERS = langchain mcp openai_agents pydantic_ai
NEWEST = $(ADAPTERS) claude_agent_sdk
QUALITY = $(BIN)/python $(SHARED)/checks/quality.py $(SHARED)/trajectories signatures --toolguard $(BIN)/otel-toolguard

.PRECIOUS: .venv-adapters/%/.ready .venv-adapters/latest-%/.ready .venv-adapters/oldest-%/.ready
.PHONY: always setup demo test lint types quality live live-up live-down bench contract adapters adapters-oldest fuzz soak mutation schemas enrich node pictures tables pins changelog clean

setup: $(READY)

$(READY): pyproject.toml integrations/langchain/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "otel-toolguard needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev --editable ".[cli,otlp]" --editable "integrations/langchain[instruments]"
	touch $(READY)

demo: setup
	$(BIN)/otel-toolguard demo

test: setup
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup $(NEWEST:%=.venv-adapters/latest-%/.types)
	$(BIN)/mypy

.venv-adapters/latest-%/.types: .venv-adapters/latest-%/.ready always
	MYPYPATH=integrations/$* .venv-adapters/latest-$*/bin/python -m mypy integrations/$*/otel_toolguard_$*

# Judges the product on recorded sessions and by checks that are no part of it; SHARED names their folder.
quality: setup
	@test -d $(SHARED)/checks || { echo "no recorded sessions: set SHARED to the folder that holds checks/ and trajectories/" >&2; exit 1; }
	$(BIN)/python $(SHARED)/checks/exact_repeat.py $(SHARED)/trajectories $(BIN)/otel-toolguard 25 15 8
	$(QUALITY) --profile strict --min-wedges 96.8 --min-storms 100 --min-cut 71.6 --max-healthy-no-toys 0
	$(QUALITY) --profile balanced --min-wedges 96.8 --min-storms 100 --min-cut 69 --max-healthy-no-toys 0
	$(QUALITY) --profile conservative --min-wedges 85 --min-storms 100 --min-cut 55 --max-healthy-no-toys 0
	$(QUALITY) --policy tests/quality/stricter.toml --min-wedges 98 --min-storms 100 --min-cut 73 --max-healthy-no-toys 0
	SHARED=$(SHARED) $(BIN)/python -m pytest -s tests/quality

# The tests of every adapter on the newest release that it supports, and on the oldest if that is another, each in an
# environment of its own; at the end a table says what their contracts came to.
adapters: $(NEWEST:%=.venv-adapters/latest-%/.log)
	@$(PYTHON) integrations/tables.py contract $(^)

adapters-oldest: $(ADAPTERS:%=.venv-adapters/oldest-%/.log)
	@$(PYTHON) integrations/tables.py contract $(^)

.venv-adapters/%/.log: .venv-adapters/%/.ready always
	set -o pipefail; .venv-adapters/$*/bin/python -m pytest -s integrations/$(word 2,$(subst -, ,$*))/tests | tee $@

.venv-adapters/latest-%/.ready: pyproject.toml constraints.txt integrations/%/pyproject.toml integrations/%/tests/latest.txt
	$(PYTHON) -m venv .venv-adapters/latest-$*
	sed '/^websockets==/d' constraints.txt > .venv-adapters/latest-$*/constraints.txt
	.venv-adapters/latest-$*/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-adapters/latest-$*/bin/python -m pip install --quiet --constraint .venv-adapters/latest-$*/constraints.txt --requirement integrations/$*/tests/latest.txt --group test --group types --editable ".[cli,otlp]" --editable "integrations/$*[instruments]"
	touch $@

.venv-adapters/oldest-%/.ready: pyproject.toml integrations/%/pyproject.toml integrations/%/tests/oldest.txt
	$(PYTHON) -m venv .venv-adapters/oldest-$*
	.venv-adapters/oldest-$*/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-adapters/oldest-$*/bin/python -m pip install --quiet --requirement integrations/$*/tests/oldest.txt --group test --editable ".[cli,otlp]" --editable "integrations/$*[instruments]"
	touch $@

always:

# Schemas of guarded tools in each framework, byte by byte; the frameworks have an environment of their own.
schemas: $(SCHEMAS)/.ready
	$(SCHEMAS)/bin/python -m pytest tests/schemas

$(SCHEMAS)/.ready: pyproject.toml tests/schemas/requirements.txt constraints.txt
	$(PYTHON) -m venv $(SCHEMAS)
	sed '/^websockets==/d' constraints.txt > $(SCHEMAS)/constraints.txt  # openai-agents wants an older one
	$(SCHEMAS)/bin/python -m pip install --quiet --constraint $(SCHEMAS)/constraints.txt --requirement tests/schemas/requirements.txt --editable . --editable "integrations/langchain[instruments]"
	touch $(SCHEMAS)/.ready

# Beside each other instrumentation one span a call; a process per file, for some cannot be taken off again.
enrich: $(ENRICH)/.ready
	for file in tests/enrich/test_*.py; do $(ENRICH)/bin/python -m pytest -q $$file || exit 1; done

$(ENRICH)/.ready: pyproject.toml tests/enrich/requirements.txt constraints.txt
	$(PYTHON) -m venv $(ENRICH)
	sed '/^websockets==/d' constraints.txt > $(ENRICH)/constraints.txt
	$(ENRICH)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(ENRICH)/bin/python -m pip install --quiet --constraint $(ENRICH)/constraints.txt --requirement tests/enrich/requirements.txt --editable . $(ADAPTERS:%=--editable integrations/%)
	touch $(ENRICH)/.ready

# The MCP proxy between a client and a server in TypeScript from the npm registry; needs Node.js 20 or newer.
node: setup $(NODE_MCP)/.ready
	NODE_MCP=$(NODE_MCP) $(BIN)/python -m pytest tests/node

$(NODE_MCP)/.ready: tests/node/package.json
	command -v npm > /dev/null || { echo "install Node.js 20 or newer, which brings node and npm" >&2; exit 1; }
	mkdir -p $(NODE_MCP)
	cp tests/node/package.json $(NODE_MCP)/
	npm install --prefix $(NODE_MCP) --no-package-lock --ignore-scripts --no-audit --no-fund
	touch $@

# A million admissions over threads, tasks and nested runs, counted from outside; a bounded part is among the tests.
soak: setup
	$(BIN)/python tests/soak/soak.py --calls 1000000

# Changes the rules, the chain and the masks in thousands of places; the tests must notice nine of ten.
mutation: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group mutation
	nice $(BIN)/mutmut run --max-children 2
	$(BIN)/mutmut export-cicd-stats
	$(BIN)/python -c 'import json, sys; s = json.load(open("mutants/mutmut-cicd-stats.json")); share = (s["killed"] + s["timeout"]) / s["total"]; print(s, f"{share:.1%} killed"); sys.exit(share < 0.9)'

# A million hostile values through signature and fingerprints; a bounded part of it is among the tests.
fuzz: setup
	$(BIN)/python tests/fuzz/run.py --values 1000000 --seed 1

# The real Collector, Jaeger and Prometheus with the files of collector-config/, built and fetched the first time; what
# the demo and the adapters' examples send through them.
live: setup $(LIVE)/.ready $(NEWEST:%=.venv-adapters/latest-%/.ready)
	$(BIN)/python -m pytest -s tests/live

# What opentelemetry-instrument needs beside the adapters' environments, whose own tests are to run without it.
$(LIVE)/.ready: pyproject.toml constraints.txt | setup
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --constraint constraints.txt --target $(LIVE) --group live
	touch $@

# The same programs left running for an hour, with a demo in them, for whoever wants to ask them something.
live-up: setup
	@$(BIN)/python tests/live/services/detached.py up

live-down:
	@$(BIN)/python tests/live/services/detached.py down

# The peers that are measured beside it have an environment of their own.
bench: $(BENCH)/.ready
	$(BENCH)/bin/python benchmarks/run.py

$(BENCH)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BENCH)
	sed '/^websockets==/d' constraints.txt > $(BENCH)/constraints.txt
	$(BENCH)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BENCH)/bin/python -m pip install --quiet --constraint $(BENCH)/constraints.txt --group bench --editable ".[cli,otlp]"
	touch $@

# Draws the documents' pictures anew, from real runs through the Collector and Jaeger of the live tests.
pictures: setup
	PYTHONPATH=docs:tests/live $(BIN)/python -m pictures.make

tables:
	$(PYTHON) integrations/tables.py readme

pins: setup schemas enrich $(BENCH)/.ready $(LIVE)/.ready
	{ for python in $(BIN)/python $(SCHEMAS)/bin/python $(ENRICH)/bin/python $(BENCH)/bin/python; do $$python -m pip freeze --exclude-editable --exclude pip --exclude setuptools; done; $(BIN)/python -m pip freeze --path $(LIVE); } | sort -fu -t= -k1,1 > constraints.txt

changelog: setup
	$(BIN)/towncrier build --yes

clean:
	rm -rf $(VENV) $(SCHEMAS) $(ENRICH) $(BENCH) $(NODE_MCP) $(LIVE) .venv-adapters mutants dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
