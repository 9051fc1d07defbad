# make demo: install, train on the embedded data, say where the results lie. make test: lint, types, tests.
# make docs: the pages as a site, in build/site. make wheel: the package, built, looked into, installed and run.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
DEMO ?= runs/demo

.PHONY: demo test docs wheel clean

demo: $(VENV)/installed
	$(BIN)/python scripts/train.py model=vit_caption out=$(DEMO) overwrite=true

test: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

docs: $(VENV)/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: $(VENV)/installed-dev
	$(BIN)/python .ci/wheel.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The stamps make a second run install nothing; a changed pyproject.toml installs again.
$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@ $(VENV)/installed

clean:
	rm -rf $(VENV) runs build dist *.egg-info
