# Everything runs in .venv. uv creates it if it is installed, otherwise venv and pip; both use locked versions.
# `make test PYTHON=python3.13` makes it anew with another Python.

PYTHON ?= python3
BIN := .venv/bin
VERSION := $(shell $(PYTHON) -c 'import platform; print(platform.python_version())')
STAMP := .venv/.ready-$(VERSION)

.DEFAULT_GOAL := help
.PHONY: help demo test test-cluster lint docs screenshots bench vsix lock clean

help: ## Show what the targets do
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(STAMP) ## Run the shipped templates offline against the simulated model
	@$(BIN)/evaluator demo

# Tests of time limits, processes and servers wait for a third of their time: four workers keep two cores busy.
test: $(STAMP) ## Run the tests
	$(BIN)/python -m pytest -n 4 --dist worksteal -q

test-cluster: $(STAMP) ## Run the tests of the Ray engine too (installs Ray, some 200 MB)
	@$(BIN)/python -c "import ray" 2>/dev/null || if command -v uv >/dev/null 2>&1; then \
		uv pip install --quiet --python $(BIN)/python "ray>=2.50"; \
	else \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check "ray>=2.50"; \
	fi
	$(BIN)/python -m pytest -q tests/batch/engines

lint: $(STAMP) ## Check style, types, imports and plain English
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/python docs/check_english.py

docs: $(STAMP) ## Build the documentation into docs/_build
	$(BIN)/python docs/generate_cli.py
	$(BIN)/python docs/generate_attempts.py
	$(BIN)/python docs/generate_options.py
	$(BIN)/python docs/generate_templates.py
	$(BIN)/sphinx-build -q -W -b html docs docs/_build/html

screenshots: $(STAMP) ## Take the pictures of the viewer in the docs (needs Chromium)
	$(BIN)/python -m docs.screenshots

bench: $(STAMP) ## Measure the figures of bench/README.md (ARGS=--quick for a short run)
	$(BIN)/python bench/all.py $(ARGS)

vsix: ## Package the extension for VS Code into dist (needs npm)
	cd editors/vscode && npm ci --omit=dev --ignore-scripts --no-audit --no-fund
	$(PYTHON) editors/vscode/make_vsix.py dist

lock: ## Update uv.lock and requirements.txt (needs uv)
	uv lock
	uv export --quiet --frozen --no-emit-project --group dev --format requirements-txt > requirements.txt

$(STAMP): pyproject.toml uv.lock requirements.txt
	@if command -v uv >/dev/null 2>&1; then \
		uv sync --quiet --frozen --inexact --group dev --python $(PYTHON); \
	else \
		{ [ -x $(BIN)/python ] && [ "$$($(BIN)/python -V)" = "Python $(VERSION)" ]; } || rm -rf .venv; \
		$(PYTHON) -m venv .venv && $(BIN)/python .ci/install.py $(BIN)/python; \
	fi
	@touch $(STAMP)

clean: ## Remove the files that the targets create
	rm -rf .venv demo-tasks .pytest_cache .ruff_cache
