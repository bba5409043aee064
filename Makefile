# Two commands set everything up on a machine that has python3 and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check wheel lowest bench gallery tables docs clean
.DEFAULT_GOAL := test

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.runtime

$(VENV)/.bench: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[bench]'
	touch $@ $(VENV)/.runtime

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[docs]'
	touch $@

demo: $(VENV)/.runtime          ## train a mixture sampler for two minutes and look at it
	$(BIN)/popgibbs demo --out demo

test: $(VENV)/.dev              ## run the tests
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

check: $(VENV)/.dev             ## lint, types, import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

wheel:                          ## build the wheel, use it in a fresh environment with the newest dependencies
	$(PYTHON) tools/fresh.py $(TESTS)

lowest:                         ## the same with every dependency at its lower bound; TESTS=tests/... runs tests there
	$(PYTHON) tools/fresh.py --lowest $(TESTS)

bench: $(VENV)/.bench           ## time against peers; writes benchmarks/results.json
	$(BIN)/python -m benchmarks.run

gallery: $(VENV)/.runtime       ## measure the examples against references; continues where it stopped
	$(BIN)/python -m tools.gallery $(GALLERY)

tables: $(VENV)/.runtime        ## write the tables of README and docs/explanation from docs/results
	$(BIN)/python docs/tables.py

docs: $(VENV)/.docs             ## build the documentation, warnings are errors
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) demo dist site
