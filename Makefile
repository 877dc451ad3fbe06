# Every target sets up what it needs; nothing has to be installed by hand but python3 (3.11+), make and git.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SHARED ?= ../shared
SCHEMAS ?= .venv-schemas
ENRICH ?= .venv-enrich
QUALITY = $(BIN)/python $(SHARED)/checks/quality.py $(SHARED)/trajectories signatures --toolguard $(BIN)/otel-toolguard

.PHONY: setup demo test lint types quality live bench contract fuzz schemas enrich pins changelog clean

setup: $(READY)

$(READY): pyproject.toml integrations/langchain/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "otel-toolguard needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev --group bench --editable ".[cli,otlp]" --editable "integrations/langchain[instruments]"
	touch $(READY)

demo: setup
	$(BIN)/otel-toolguard demo

test: setup
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

# Judges the product on recorded sessions and by checks that are no part of it; SHARED names their folder.
quality: setup
	@test -d $(SHARED)/checks || { echo "no recorded sessions: set SHARED to the folder that holds checks/ and trajectories/" >&2; exit 1; }
	$(BIN)/python $(SHARED)/checks/exact_repeat.py $(SHARED)/trajectories $(BIN)/otel-toolguard 25 15 8
	$(QUALITY) --profile strict --min-wedges 96.8 --min-storms 100 --min-cut 71.6 --max-healthy-no-toys 0
	$(QUALITY) --profile balanced --min-wedges 96.8 --min-storms 100 --min-cut 69 --max-healthy-no-toys 0
	$(QUALITY) --profile conservative --min-wedges 85 --min-storms 100 --min-cut 55 --max-healthy-no-toys 0
	$(QUALITY) --policy tests/quality/stricter.toml --min-wedges 98 --min-storms 100 --min-cut 73 --max-healthy-no-toys 0
	SHARED=$(SHARED) $(BIN)/python -m pytest -s tests/quality

# The contract that every adapter keeps; a line per adapter at the end.
contract: setup
	$(BIN)/python -m pytest -s integrations/*/tests/test_contract.py

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

$(ENRICH)/.ready: pyproject.toml tests/enrich/requirements.txt
	$(PYTHON) -m venv $(ENRICH)
	$(ENRICH)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(ENRICH)/bin/python -m pip install --quiet --requirement tests/enrich/requirements.txt --editable . --editable integrations/langchain
	touch $(ENRICH)/.ready

# A million hostile values through signature and fingerprints; a bounded part of it is among the tests.
fuzz: setup
	$(BIN)/python tests/fuzz/run.py --values 1000000 --seed 1

live: setup
	$(BIN)/python -m pytest tests/live

bench: setup
	$(BIN)/python benchmarks/run.py

pins: setup
	$(BIN)/python -m pip freeze --exclude-editable --exclude pip --exclude setuptools > constraints.txt

changelog: setup
	$(BIN)/towncrier build --yes

clean:
	rm -rf $(VENV) $(SCHEMAS) $(ENRICH) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
