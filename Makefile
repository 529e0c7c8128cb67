# Every target sets up what it needs; nothing but Python 3.11 or newer is assumed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
# Nothing is installed whose hash is not in requirements/: `make lock` writes them.
HASHED := $(PIP) --require-hashes -r requirements
UV_ITSELF := $(PIP) --require-hashes -r $(VENV)/uv.txt
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes -r requirements
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
DATA := $(wildcard ../shared/data)
# Where nobody keeps compiled modules, each of a thousand processes that tests start makes its own.
unexport PYTHONDONTWRITEBYTECODE
ifneq ($(DATA),)
export SOTTOVOCE_DATA ?= $(abspath $(DATA))
endif

INPUTS ?= 1000000
TYPESCRIPT := 5.9.3
NPM := npm --silent --prefix clients/browser

.PHONY: demo test test-all mutation fuzz facts figures docs docs-serve check types-js browser tabs wheel sbom release lint format bench lock clean
.DELETE_ON_ERROR:

demo: $(VENV)/.demo
	$(BIN)/sottovoce demo

# Types are checked beside the tests, and two more of these run at a time than there are processors
# in CI: they often wait for processes. Either fails the target.
test: lint
	@$(BIN)/mypy >$(VENV)/mypy.log 2>&1 & types=$$!; \
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder; tests=$$?; \
	wait $$types; types=$$?; cat $(VENV)/mypy.log; exit $$((tests || types))

test-all: check
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "" --hypothesis-profile searching
	$(MAKE) mutation

# What no test would notice of what leaves and what is booked. MODULE=privacy.updates for one module.
mutation: $(VENV)/.dev
	$(BIN)/python tests/mutation $(addprefix --module ,$(MODULE))

# INPUTS=n in all, TARGET=name for one of them, REPLAY=file of fuzz-findings/TARGET to run it again.
fuzz: $(VENV)/.fuzz
	$(BIN)/python tests/fuzz --inputs $(INPUTS) $(addprefix --target ,$(TARGET)) $(REPLAY)

# How large and how entangled the house is, by room, and how much of it people have to know. Fails on
# cycles, imports against their direction, and names and magics that mean two things, by
# tools/facts.toml. What a report costs is measured, in half a minute: `make test` leaves that out.
facts: $(VENV)/.dev
	$(BIN)/python tools/facts.py --measure $(if $(EXPLAIN),--explain)

# The figures of the documents, from docs/figures/data and from the source. A test redraws them.
figures: $(VENV)/.dev
	$(BIN)/python tools/figures.py

# The documents: what is wrong with them, their reference, and a site of them in build/site.
docs: $(VENV)/.dev
	$(BIN)/python tools/docs.py build

# The same at http://localhost:8000, until it is interrupted.
docs-serve: docs
	$(BIN)/python -m http.server 8000 --bind 127.0.0.1 --directory build/site

check: lint
	$(BIN)/mypy

# The types of the pages' modules. Without npm there is nothing to check them with.
types-js: | $(BIN)/python
	@if ! command -v npm >/dev/null; then echo "npm is not installed: types are not checked"; else \
	  npm install --silent --no-audit --no-fund --prefix $(VENV)/node typescript@$(TYPESCRIPT) && \
	  $(VENV)/node/node_modules/.bin/tsc -p src/sottovoce/web/pages/jsconfig.json; fi

# The library of browser tabs: types, tests and one file of it. Needs Node, which nothing else does.
browser:
	@command -v npm >/dev/null || { echo "This needs Node 20 or newer, with npm." >&2; exit 1; }
	$(NPM) ci --no-audit --no-fund --ignore-scripts
	$(NPM) run check

# Wheels have the files for browser tabs; without Node they are built without them, and say so.
tabs:
	@if command -v npm >/dev/null; then $(NPM) ci --no-audit --no-fund --ignore-scripts && $(NPM) run build; \
	  else echo "npm is not installed: the wheel will have no files for browser tabs"; fi

# Wheel and source archive in dist/.
wheel: tabs $(VENV)/.core
	$(BIN)/python tools/release.py wheel

# A bill of materials for each lock, in dist/. Licences are read from what is installed.
sbom: $(VENV)/.dev
	$(BIN)/python tools/release.py sbom

# All that is handed out, with its checksums, and a try in a fresh environment away from here.
release: tabs $(VENV)/.dev
	rm -rf dist
	$(BIN)/python tools/release.py release

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	$(BIN)/sottovoce bench fpl

$(BIN)/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Sottovoce needs Python 3.11 or newer; set PYTHON=/path/to/it." >&2; exit 1; }
	@echo "Creating $(VENV) with $(PYTHON)"
	@"$(PYTHON)" -m venv $(VENV)

$(VENV)/.core: pyproject.toml requirements/core.lock | $(BIN)/python
	@echo "Installing the core (no torch, no Flower)"
	@$(HASHED)/core.lock
	@$(PIP) --no-build-isolation -e .
	@touch $@

# UC-FedRec needs torch. Its build for processors alone takes about as long to install as all of the
# core, and as much room; a second implementation in numpy would be some four hundred lines that have to
# agree with it. On Linux the index of Python has the build for GPUs, which is many times as large.
CPU := --index-url https://download.pytorch.org/whl/cpu --retries 1
$(VENV)/.demo: $(VENV)/.core requirements/torch-cpu.lock
	@echo "Installing torch for processors"
	@$(HASHED)/torch-cpu.lock --no-index >/dev/null 2>&1 || \
	$(HASHED)/torch$$([ "$$(uname)" = Linux ] && echo "-cpu.lock $(CPU)" || echo .lock) || \
	echo "torch was not installed: the demo leaves UC-FedRec out"
	@touch $@

# torch for processors alone is taken from a folder that pip knows, and uv does not; without one, from
# the index. uv installs the rest in a fraction of pip's time; where it cannot, pip does.
$(VENV)/.dev: pyproject.toml $(wildcard requirements/*.lock) | $(BIN)/python
	@echo "Installing the core, torch, the services, Flower and the development tools"
	@sed -n '/^uv==/,/[^\\]$$/p' requirements/dev.lock >$(VENV)/uv.txt
	@$(HASHED)/torch-cpu.lock --no-index >/dev/null 2>&1 & torch=$$!; \
	{ $(UV_ITSELF) && $(UV)/dev.lock; } || $(HASHED)/dev.lock; \
	dev=$$?; wait $$torch || $(HASHED)/torch.lock && exit $$dev
	@$(PIP) --no-build-isolation -e .
	@touch $(VENV)/.core $(VENV)/.demo $@

$(VENV)/.fuzz: requirements/fuzz.lock $(VENV)/.dev
	@$(HASHED)/fuzz.lock || echo "atheris does not install here: Hypothesis draws inputs, nothing guides it"
	@touch $@

# constraints.txt has versions alone: with one hash in it, pip would refuse wheels and `-e .`.
lock: $(VENV)/.dev
	$(LOCK) -c constraints.txt pyproject.toml requirements/build.in -o requirements/core.lock
	$(LOCK) -c constraints.txt pyproject.toml requirements/build.in --extra web -o requirements/web.lock
	$(LOCK) -c constraints.txt pyproject.toml requirements/build.in requirements/torch-needs.in \
	  --extra web --extra flower --extra attacks --extra tune --extra frames --extra docs --extra dev -o requirements/dev.lock
	$(LOCK) -c constraints.txt requirements/torch.in -o requirements/torch.lock

clean:
	rm -rf $(VENV) dist build .cache .mypy_cache .ruff_cache .pytest_cache
