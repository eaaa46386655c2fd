# Every target makes the virtual environment that it needs.
PYTHON ?= python3
BIN := .venv/bin
DPSWEEP := $(BIN)/dpsweep
THREADS ?= 1

.PHONY: demo test lint bench bench-check clean help

help:
	@echo "make demo    run the embedded suite and show its table (about two minutes once installed)"
	@echo "make test    run the tests"
	@echo "make lint    check style and types"
	@echo "make bench   time dpsweep, Opacus and plain training side by side (THREADS=1), figures in outputs/bench.json"
	@echo "make bench-check   the same, and fail where a ratio misses its bar"

.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

demo: .venv/.installed
	$(DPSWEEP) run suite=quickstart
	$(DPSWEEP) report suite=quickstart

test: .venv/.installed
	$(BIN)/python -m pytest

lint: .venv/.installed
	$(BIN)/ruff check dpsweep tests scripts
	$(BIN)/mypy

bench: .venv/.installed
	$(BIN)/python scripts/bench.py --threads $(THREADS) --json outputs/bench.json

bench-check: .venv/.installed
	$(BIN)/python scripts/bench.py --threads $(THREADS) --json outputs/bench.json --check

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
