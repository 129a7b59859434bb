# `make demo` and `make test` work right after a clone; everything is installed into .venv.
# PYTHON names the interpreter that makes .venv (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Two workers on two cores: more threads in each would only make them wait for one another.
TEST_ENV := OMP_NUM_THREADS=1
JUNIT := build/junit.xml
PYTEST_ARGS ?=
# Further options for `workbench open`, such as --no-browser.
LAB_ARGS ?=

.PHONY: demo test check docs lab screenshots install clean

demo: $(STAMP)
	$(BIN)/workbench demo --out demo

test: $(STAMP)
	@mkdir -p $(dir $(JUNIT))
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist loadfile --junitxml=$(JUNIT) $(PYTEST_ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The documentation site; strict: a broken link or a name without a docstring page fails.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

# The guided notebook on the demo's bundle; the demo is run first where there is none.
lab: $(STAMP)
	@ls -d demo/incidents/*.bundle >/dev/null 2>&1 || $(BIN)/workbench demo --out demo
	$(BIN)/workbench open --step workbench.cli.demo_training:CharacterModelStep $(LAB_ARGS) \
	  "$$(ls -d demo/incidents/*.bundle | head -n 1)"

screenshots: $(STAMP)
	@if [ -f scripts/screenshots.py ]; then $(BIN)/python scripts/screenshots.py; \
	else echo "scripts/screenshots.py is not in this checkout." >&2; exit 4; fi

install: $(STAMP)

# torch goes first and alone: its index may offer several builds of one version, and a resolver
# that sees the whole list at once may take another one than the machine's own.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; set PYTHON=... to one." >&2; exit 4; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet "$$(grep '^torch==' requirements.lock)"
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -r requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	@touch $(STAMP)

clean:
	rm -rf build dist demo .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
