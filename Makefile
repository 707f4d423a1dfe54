# `make demo` shows the package at work, `make test` checks everything. Both set up their own virtual environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Many tests wait for other processes, so one more worker than cores keeps all cores busy.
PYTEST = $(BIN)/pytest -n "$$($(BIN)/python -c 'import os; print(os.cpu_count() + 1)')" --dist loadgroup
PIP_INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
# Tests start many processes: each would compile the package again if the environment forbids to store what it compiled.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: test test-all checks report docs demo lint format sanitize clean

test: checks
	$(PYTEST)

# Also the tests that need the internet or take long, and how much of the code all of them reach.
test-all: checks
	$(PYTEST) -m "" --cov --cov-report=term

# Lint and the sanitized build at the same time: each uses one core. When lint is done, the sanitized tests use both.
checks: $(VENV)/test.ready
	$(MAKE) --no-print-directory -j2 --output-sync=target lint sanitize

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
KERNEL := src/aimopt/kernels/cpu
# Tests of which other processes do the work: the compiler, and kernels that are compiled without checks.
IN_OTHER_PROCESSES := the_environment_chooses_the_instruction_set a_damaged_file_is_not_loaded_but_compiled_again \
	whatever_keeps_a_kernel_from_being_compiled_the_step_is_made
sanitize: $(VENV)/test.ready $(SANITIZED)/libstep.so
	rm -rf $(SANITIZED)/aimopt && cp -r src/aimopt $(SANITIZED)/ && cp $(SANITIZED)/libstep.so $(SANITIZED)/aimopt/kernels/cpu/
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=$(SANITIZED) $(BIN)/pytest -q -n 2 -p no:cacheprovider $(IN_OTHER_PROCESSES:%=--deselect tests/kernels/test_straight_line.py::test_%) tests/kernels/test_cpu.py tests/kernels/test_addresses.py tests/kernels/test_scaling.py \
		tests/kernels/test_straight_line.py tests/step/test_quantization.py tests/kernels/test_memory.py tests/kernels/test_records.py tests/kernels/test_changing_sets.py tests/kernels/test_step_safety.py \
		tests/kernels/test_edits.py

# A check of an address is a call where the compiler knows how: written out, the checks took half as long again to compile.
CHECK_BY_CALL := --param asan-instrumentation-with-call-threshold=0
$(SANITIZED)/libstep.so: $(wildcard $(KERNEL)/*.cpp $(KERNEL)/*.h $(KERNEL)/*.inc) Makefile
	mkdir -p $(@D)
	$(CXX) -std=c++17 -O1 -g1 -Wall -Wextra -Werror -ffp-contract=off $(SANITIZERS) \
		$$($(CXX) -Werror $(CHECK_BY_CALL) -fsyntax-only -x c++ /dev/null 2>/dev/null && echo "$(CHECK_BY_CALL)") \
		-fPIC -shared -pthread $(KERNEL)/step.cpp $(KERNEL)/stream.cpp $(KERNEL)/memory.cpp -o $@ -ldl

# The report of the runs in one of the archives of docs/results: `make report ARCHIVE=table1`.
ARCHIVE ?= mini
report: $(VENV)/language.ready $(VENV)/rl.ready
	rm -rf build/results build/report && mkdir -p build/results && tar -xf docs/results/$(ARCHIVE).tar.xz -C build/results
	$(BIN)/aimopt report build/results --out build/report

# The site, to be opened as a file; NO_MKDOCS_2_WARNING: the theme's note about versions to come.
docs: $(VENV)/docs.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo build/site/index.html

demo: $(VENV)/lab.ready
	$(BIN)/aimopt compare digits --scale demo --store build/demo

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/%.ready: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .coverage
