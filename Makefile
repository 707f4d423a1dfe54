# `make demo` shows the package at work, `make test` checks everything. Both set up their own virtual environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: test demo lint format sanitize clean

test: lint sanitize
	$(BIN)/pytest -n auto --cov --cov-report=term

lint: $(VENV)/test.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/test.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The kernel's tests on a copy of the package whose kernel checks every address and every undefined behaviour.
SANITIZED := build/sanitized
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=all
sanitize: $(VENV)/test.ready
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED) && cp -r src/aimopt $(SANITIZED)/
	$(CXX) -std=c++17 -O1 -g -Wall -Wextra -Werror -ffp-contract=off $(SANITIZERS) -fPIC -shared -pthread \
		src/aimopt/kernels/step.cpp src/aimopt/kernels/stream.cpp src/aimopt/kernels/memory.cpp -o $(SANITIZED)/aimopt/kernels/libstep.so -ldl
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=$(SANITIZED) $(BIN)/pytest -q -p no:cacheprovider tests/kernels/test_cpu.py tests/kernels/test_tables.py tests/kernels/test_scaling.py \
		tests/kernels/test_memory.py tests/kernels/test_edits.py

demo: $(VENV)/lab.ready
	$(BIN)/aimopt compare digits --scale demo --store build/demo

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/%.ready: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .coverage
