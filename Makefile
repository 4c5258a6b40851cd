# Every target does its own set-up, so that each works on a fresh machine: make demo, make test, make check.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed


.PHONY: demo test check lint incidents long fuzz bench docs clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,stacks]'
	DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt deepspeed
	@touch $(READY)

demo: $(READY)  ## a small model trains, its data goes bad, the whole runbook runs; leaves a postmortem
	$(BIN)/spike demo

test: $(READY)  ## the default tests: seconds for the core, minutes for real training processes
	$(BIN)/python -m pytest

check: lint test  ## what CI runs: style, types, arrows and every default test

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

incidents: $(READY)  ## every fixture incident, investigated blind
	$(BIN)/spike ci fixtures/incidents --junit junit.xml

long: $(READY)  ## what is too long for every run: two thousand kills, every incident
	SPIKE_KILLS=2000 $(BIN)/python -m pytest -m long

fuzz: $(READY)  ## coverage-guided fuzzing of every reader of binary files, a minute each
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	for file in fuzz/fuzz_*.py; do echo "== $$file"; $(BIN)/python $$file -max_total_time=60 || exit 1; done

bench: $(READY)  ## ratios against the peer and the floor, in one run each
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	for file in bench/*.py; do case $$file in bench/_*|*/curves.py|*/odd.py|*/rules.py|*/detect_rates.py) ;; *) echo "== $$file"; $(BIN)/python $$file || echo "== $$file: a goal was missed, see above";; esac; done

docs: $(READY)  ## write the command reference again
	$(BIN)/python docs/write_commands.py > docs/COMMANDS.md

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
