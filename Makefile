# make demo    set up, then detoxify the example prompts with the bundled model and scorer
# make test    set up with the test extras, then run the tests
# make check   set up with the developers' extras, then lint, format check and strict types
# make clean   remove what the other verbs made

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check clean
.DELETE_ON_ERROR:

demo: $(VENV)/.with-profanity
	$(BIN)/tide run --input examples/prompts.txt --judge profanity-check --mask

test: $(VENV)/.with-test
	$(BIN)/python -m pytest

check: $(VENV)/.with-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/.with-%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
