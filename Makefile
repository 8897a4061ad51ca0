# Two commands matter: `make lab` to learn, `make test` to see that all of it holds.
# Options go into ARGS:  make lab ARGS="--no-browser --port 8899"
# Another Python:        make lab PYTHON=python3.12
# Another torch:         make test-with TORCH=2.14.1

PYTHON ?= python3 python3.13 python3.12 python3.11
ARGS ?=
VENV := .venv
PEERS := build/peers
BIN := $(VENV)/bin
GOAL = $(firstword $(MAKECMDGOALS) lab)
INSTALL = $(BIN)/python course_utils/install.py $(GOAL)

.PHONY: lab test test-with notebooks book bench bench-peers proof pictures lint FORCE
.NOTPARALLEL:
.DELETE_ON_ERROR:

lab: $(VENV)/installed
	@$(BIN)/python -m course_utils.cli lab $(ARGS)

test: $(VENV)/installed-test
	@$(BIN)/python -m pytest tests --numprocesses logical --maxprocesses 4 --dist loadscope --no-loadscope-reorder $(ARGS)

notebooks: $(VENV)/installed
	@$(BIN)/python -m course_utils.cli build $(ARGS)

book: $(VENV)/installed-book
	@$(BIN)/python -m course_utils.book $(ARGS)

bench: $(VENV)/installed
	@$(BIN)/python -m tests.benchmarks $(ARGS)

bench-peers: $(VENV)/installed $(PEERS)/installed
	@PEERS=$(PEERS) $(BIN)/python -m tests.benchmarks peers peers_diagnose $(ARGS)

test-with: $(VENV)/bin/python
	@$(BIN)/python tests/with_torch.py $(TORCH) $(ARGS)

proof: $(VENV)/installed-test
	@$(BIN)/python -m course_utils.cli prove $(ARGS)

pictures: $(VENV)/installed-test
	@$(BIN)/python tests/pictures.py

lint: $(VENV)/installed-test
	@$(BIN)/python -m ruff check . $(ARGS)

# What is installed is noted in stamp files, so that a second start installs nothing. They hold the folder
# that they were made in: an environment that was moved or copied with its folder installs itself again,
# and so does one whose Python is gone. All this keeps to GNU make 3.81, which is the one on macOS.
stamp = pwd -P >
# One in which pip was stopped while it wrote packages is made anew: pip takes half a package for a whole.
whole = test ! -e $(VENV)/half-installed
stale = $(shell test -x $(BIN)/python && $(whole) && pwd -P | cmp -s - $(1) || echo FORCE)

$(VENV)/installed: pyproject.toml constraints.txt $(call stale,$(VENV)/installed) | $(VENV)/bin/python
	@$(INSTALL) -e .
	@$(stamp) $@

$(VENV)/installed-test: pyproject.toml constraints.txt $(call stale,$(VENV)/installed-test) | $(VENV)/bin/python
	@$(INSTALL) -e '.[test]'
	@$(stamp) $@
	@$(stamp) $(VENV)/installed

$(VENV)/installed-book: pyproject.toml constraints.txt $(call stale,$(VENV)/installed-book) | $(VENV)/bin/python
	@$(INSTALL) -e '.[book]'
	@$(stamp) $@
	@$(stamp) $(VENV)/installed

# The graders, and what tests models, that `make bench-peers` compares with live in an environment of their own.
$(PEERS)/installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@$(BIN)/python -m venv --clear $(PEERS)
	@$(PEERS)/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e . otter-grader nbgrader torchtest2==0.1.0
	@touch $@

$(VENV)/bin/python: $(shell $(whole) || echo FORCE)
	@for python in $(PYTHON); do \
		"$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || continue; \
		"$$python" -c 'import ensurepip, venv' 2>/dev/null || { \
			echo "$$python cannot make virtual environments: its venv module is missing. On Debian and Ubuntu:"; \
			echo "    sudo apt install python3-venv"; exit 1; }; \
		exec "$$python" -m venv --clear $(VENV); \
	done; \
	echo "The course needs Python 3.11, 3.12 or 3.13. None of these is one: $(PYTHON)"; \
	echo "With one that is elsewhere:  make $(GOAL) PYTHON=/path/to/python3.12"; exit 1

FORCE:
