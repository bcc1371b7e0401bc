# make demo   set up and show it        make test   everything CI runs
# make check  the quick half            make clean  take the set-up away
# make tables README and results/paper, from results/
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
CODE := src tests examples reproduction benchmarks

.PHONY: setup demo test check lint types tables clean

$(STAMP): pyproject.toml reproduction/pyproject.toml benchmarks/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[dev,flower]' -e ./benchmarks -e ./reproduction
	@touch $@

setup: $(STAMP)

demo: $(STAMP)
	$(BIN)/flameche demo

check: $(STAMP) lint types

lint: $(STAMP)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: $(STAMP)
	$(BIN)/mypy

test: check
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

tables: $(STAMP)
	$(BIN)/flameche reproduce all --stored --out results/paper --readme README.md > /dev/null

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
