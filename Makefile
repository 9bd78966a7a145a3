PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Everything the checks need; the other extras are installed by those who use them.
EXTRAS := dev,eval,retrieval,track,wiki,export,hf,lora,serve,sweep,browser,docs,notebook

# Those that need neither a GPU nor files of yours.
BENCHES := data_prepare data_loader masking train_step finetune inference minimal_pairs ablations processes checkpoint_stall faults

.PHONY: setup train test test-all lint format typecheck imports bench journeys clients docs clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

train: setup
	$(BIN)/maskwright train

# Two processes with a core each: small models gain nothing from a second thread. They take whole files in order.
# Bytecode is kept, whatever the shell says: each process would compile the package and all test files again.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

test: setup lint typecheck imports
	$(PYTEST)

# Those marked slow too: all but what needs a GPU.
test-all: setup lint typecheck imports
	$(PYTEST) -m 'not gpu'

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

typecheck: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

# Every command of README and docs and every recipe's first steps; JOURNEYS="--only finetune --jobs 2" and the like.
journeys: setup
	$(BIN)/python -m journeys $(JOURNEYS)

# A model of each kind, opened in the programs that read exports; CLIENTS="--only Transformers.js" and the like.
clients: setup
	$(BIN)/python -m clients $(CLIENTS)

# The documentation site, in build/docs; nothing in it is loaded from another host.
docs: setup
	$(BIN)/python -m website
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open build/docs/index.html"

bench: setup
	for script in $(BENCHES); do $(BIN)/python benchmarks/$$script.py || exit 1; done

clean:
	rm -rf $(VENV) build/pages build/docs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
