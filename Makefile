# recalld: `make run` serves the sample workspace, `make test` runs every test. Both set everything up first.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
WORKSPACE ?= workspace
INSTALLED := $(VENV)/.installed

.PHONY: help install run test torture check format lock bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

install: $(INSTALLED) ## make .venv and install everything that is pinned in requirements.lock

$(INSTALLED): requirements.lock pyproject.toml tools/install_torch.sh
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "recalld needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	tools/install_torch.sh $(PY)
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(WORKSPACE):
	cp -R examples/workspace $(WORKSPACE)

run: install | $(WORKSPACE) ## serve the sample workspace on http://127.0.0.1:8080
	$(PY) -m bot serve --workspace $(WORKSPACE)

test: install ## run every test
	$(PY) -m pytest -q

torture: install ## kill, cut the power and let the disk fail, for about half an hour (needs fuse3, root for some)
	$(PY) -m tests.torture kill --rounds 150
	for how in drop prefix torn; do $(PY) -m tests.torture power --rounds 60 --how $$how || exit 1; done
	$(PY) -m tests.torture power --rounds 60 --mode efs --how torn
	$(PY) -m tests.torture faults --share 0.3
	$(PY) -m tests.torture tasks --rounds 60

check: install ## format, lint, types, import contracts
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache

format: install ## format the code
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

lock: ## resolve requirements.lock anew (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --all-extras --no-emit-package torch \
		--no-annotate pyproject.toml --output-file requirements.lock

bench: install ## run the benchmarks (minutes)
	$(PY) -m bench

clean: ## remove the environment and caches, never a workspace
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
