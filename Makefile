# Two commands on a new machine with Python 3.11 or newer: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
# one thread a process: two test processes share two cores
SINGLE := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1

.PHONY: demo test test-full lint docs lock clean

demo: .venv/ready
	$(BIN)/leadline demo

test: .venv/ready lint
	$(SINGLE) $(BIN)/pytest -m "not full" -n 2 --dist worksteal

test-full: .venv/ready
	$(SINGLE) $(BIN)/pytest -n 2 --dist worksteal

lint: .venv/ready
	$(BIN)/ruff check src tests benchmarks docs/mathml.py
	$(BIN)/ruff format --check src tests benchmarks docs/mathml.py
	$(BIN)/pyright
	$(BIN)/lint-imports

.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lock:
	$(BIN)/uv pip compile --universal --python-version 3.11 --extra dev --no-header --quiet \
		--no-emit-index-url --no-emit-find-links --no-annotate pyproject.toml --output-file requirements.lock

clean:
	rm -rf .venv out build dist site
