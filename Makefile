# Everything a fresh Debian 12 or Ubuntu 22.04+ needs, as root.
#   make demo     set everything up, record a simulated service with real eBPF, print the verdict
#   make test     set everything up, run every check and test
#   make install-man   man pages of every command: man tracer-record
SHELL := /bin/bash
PYTHON ?= /usr/bin/python3
VENV := .venv
DEV := .venv-dev
MANDIR ?= /usr/local/share/man
PACKAGES := python3 python3-venv python3-bpfcc gcc libc6-dev binutils make
# Only for the tests: the browser that opens the report.
TEST_PACKAGES := chromium
CODE := tracer probes analysis

.PHONY: demo setup test check bench acceptance fuzz scoreboard scoreboard-docs docs system install-man clean
.DEFAULT_GOAL := demo

demo: setup
	$(VENV)/bin/tracer demo

# .venv: the tracer and what it needs to run, nothing else.
setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml | system
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -e .
	touch $@

# .venv-dev: the same and the tools of the tests.
$(DEV)/.installed: pyproject.toml | system
	$(PYTHON) -m venv $(DEV)
	$(DEV)/bin/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

# bcc and kernel headers are the distribution's. Any headers serve: the programs use only the
# stable interfaces in them.
system:
	@PACKAGES="$(PACKAGES)" sh .ci/system-packages

check: $(DEV)/.installed
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/mypy

test: check
	@PACKAGES="$(PACKAGES)" OPTIONAL="$(TEST_PACKAGES)" sh .ci/system-packages
	$(DEV)/bin/python -m pytest -p no:cacheprovider $(PYTEST_ARGS)

# One line a figure: name value unit baseline ratio; all of them in bench.json.
bench: $(DEV)/.installed
	@PACKAGES="$(PACKAGES) bpftrace" sh .ci/system-packages
	$(DEV)/bin/python -m tests.benchmarks.run $(BENCH_ARGS)

# The long forms: every scenario with ten seeds, and the counts that CI only samples.
acceptance: $(DEV)/.installed
	$(DEV)/bin/python -m tests.e2e.acceptance --runs 10 $(ACCEPTANCE_ARGS)
	$(DEV)/bin/python -m tests.e2e.harm --rounds 100

# Importers against recordings damaged at random; bad cases are kept in fuzzed/.
fuzz: $(DEV)/.installed
	$(DEV)/bin/python -m tests.probes.recorded.fuzz --minutes 10 $(FUZZ_ARGS)

# How often the verdict is right: built cases, recorded traces, live scenarios; scoreboard.json.
SEED ?= 1
scoreboard: $(DEV)/.installed
	$(DEV)/bin/python -m tests.scenarios.scoreboard --seed $(SEED) $(SCOREBOARD_ARGS)

# The same with seed 1, written into docs/.
scoreboard-docs: $(DEV)/.installed
	$(DEV)/bin/python -m tests.scenarios.scoreboard --docs $(SCOREBOARD_ARGS)

# Fault injection and days in compressed time; their figures are in docs/soak.md.
faults: $(DEV)/.installed
	$(DEV)/bin/python -m tests.e2e.faults $(FAULTS_ARGS)
	$(DEV)/bin/python -m tests.e2e.soak $(SOAK_ARGS)

# Regenerate the parts of docs/ and README.md that come from the sources.
docs: $(DEV)/.installed
	$(DEV)/bin/python -m tests.generated_docs --write

install-man: setup
	install -d $(DESTDIR)$(MANDIR)/man1
	$(VENV)/bin/python -m tracer.man_pages $(DESTDIR)$(MANDIR)/man1

clean:
	rm -rf $(VENV) $(DEV) *.egg-info build .mypy_cache .ruff_cache .pytest_cache
