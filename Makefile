# Development commands. They require only make and Python 3.11 to 3.14.

PYTHON ?= python3
VENV ?= .venv
PYTEST_WORKERS ?= 2
UPGRADE ?=
PYTHONS ?= $(PYTHON)
RESOLUTIONS ?= highest

.PHONY: demo test unit slow simulators lint format docs notebooks results package lock clean

demo: $(VENV)/.installed  ## train the default agent and plot its results
	$(VENV)/bin/gtrxl train

test: lint  ## lint, type checks and all tests except the slow ones
	$(VENV)/bin/python -m pytest --numprocesses $(PYTEST_WORKERS) --dist worksteal

unit: $(VENV)/.installed  ## the quick tests: without training, programs and whole networks
	$(VENV)/bin/python -m pytest -m "not slow and not integration and not simulators" \
	  --numprocesses $(PYTEST_WORKERS) --dist worksteal

slow: $(VENV)/.installed  ## the tests that train agents to a score, run every program, and type every command of the pages
	$(VENV)/bin/python -m pytest -m slow --numprocesses $(PYTEST_WORKERS) --dist loadfile

simulators: $(VENV)/.installed  ## the tests of MiniGrid, POPGym, Atari, MuJoCo, Box2D, ViZDoom, envpool and Memory Maze themselves, in an environment of their own
	$(VENV)/bin/uv venv --quiet --allow-existing --python $(VENV)/bin/python build/simulators
	$(VENV)/bin/uv pip install --quiet --python build/simulators --constraint requirements.lock pytest beartype \
	  --editable ".[atari,box2d,envpool,memory-maze,minigrid,mujoco,popgym,vizdoom]"
	build/simulators/bin/python -m pytest -m simulators -rs tests/envs/test_simulators.py tests/worlds/test_popgym.py

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/.installed  ## format the sources and apply fixes
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: $(VENV)/.installed  ## the documentation, as a site in site/
	$(VENV)/bin/mkdocs build

notebooks: $(VENV)/.installed  ## execute the notebooks and store their outputs: ten minutes
	$(VENV)/bin/python notebooks/execute.py

results: $(VENV)/.installed  ## all reports and the tables in the pages, from the records in experiments/results/
	$(VENV)/bin/python experiments/pages.py

package: $(VENV)/.installed  ## the wheel and the source distribution in dist/, checked, and tried with each of PYTHONS and RESOLUTIONS
	rm -rf build dist
	$(VENV)/bin/uv build --quiet
	$(VENV)/bin/uvx --quiet twine check --strict dist/*.whl dist/*.tar.gz
	@set -e; for python in $(PYTHONS); do for resolution in $(RESOLUTIONS); do \
	  $(VENV)/bin/uv venv --quiet --clear --python $$python build/try; \
	  $(VENV)/bin/uv pip install --quiet --python build/try --resolution $$resolution --no-build \
	    --requirement pyproject.toml dist/*.whl; \
	  (cd build && rm -rf run && try/bin/gtrxl doctor && try/bin/gtrxl train --preset debug --folder run \
	    && try/bin/gtrxl evaluate run --episodes 8 && try/bin/gtrxl play run \
	    && try/bin/gtrxl evaluate bundled://tmaze --episodes 64 && try/bin/gtrxl play bundled://tmaze); \
	done; done

lock: $(VENV)/.installed  ## update requirements.lock from pyproject.toml; UPGRADE=1 selects the newest versions
	$(VENV)/bin/uv pip compile pyproject.toml --output-file requirements.lock --quiet \
	  --universal --python-version 3.11 --fork-strategy fewest --extra test --extra dev \
	  --generate-hashes --no-annotate --no-header $(if $(UPGRADE),--upgrade)

clean:  ## remove the virtual environment and all build products and caches, but not runs/
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment is recreated when the lock changes, so that it contains no other packages.
$(VENV)/.locked: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' \
	  || { echo "gtrxl_jax needs Python 3.11 to 3.14; $(PYTHON) is another. Try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install --quiet --no-compile --require-hashes --requirement requirements.lock
	-$(VENV)/bin/python -m compileall -qq -j 0 $(VENV)/lib  # on all cores, unlike pip
	@touch $@

$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	$(VENV)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
