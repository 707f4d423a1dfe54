# `make demo` shows the package at work, `make test` checks everything. Both set up their own virtual environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: test demo lint format clean

test: lint
	$(BIN)/pytest -n auto --cov --cov-report=term

lint: $(VENV)/test.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/test.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(VENV)/demo.ready
	$(BIN)/python examples/digits.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/%.ready: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .coverage
