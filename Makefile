# Every target makes the virtual environment that it needs.
PYTHON ?= python3
BIN := .venv/bin
DPSWEEP := $(BIN)/dpsweep
THREADS ?= 1
OPTIONS ?=

.NOTPARALLEL:
.PHONY: demo test storm lint bench bench-check clean help dp_rvfl dp_rvfl_powered dp_rvfl_smoke fo_dp_sgd fo_fair fo_tuning fo_smoke \
	demonstrate_dirichlet dirichlet_table1 dirichlet_table2 dirichlet_table3 dirichlet_table4 dirichlet_table5 dirichlet_figure2 \
	dirichlet_figure3 dirichlet_sampling dirichlet_optimizers dirichlet_cpu dirichlet_smoke hero hero_mnist hero_fashionmnist \
	hero_cifar10 hero_variants hero_convergence hero_smoke grand grand_smoke

help:
	@echo "make demo    run the embedded suite and show its table (about two minutes once installed)"
	@echo "make test    run the tests"
	@echo "make storm   kill a sweep's processes at random, fifty times over (about eight minutes)"
	@echo "make lint    check style and types"
	@echo "make dp_rvfl_table3   run what is missing for one table of the DP-RVFL paper (1 to 10; figure2 to figure4), show it"
	@echo "make dp_rvfl          the whole paper: 2,536 tasks and two repeats of table 10 (hours to days: dpsweep plan suite=dp_rvfl)"
	@echo "make dp_rvfl_powered  its frozen-head models with 20 seeds, so that the exact tests can reach significance"
	@echo "make dp_rvfl_smoke    every stage of it in small on embedded data (under three minutes)"
	@echo "make fo_table3        run what is missing for one table of the FO-DP-SGD paper (1 to 3; fo_figure1 to fo_figure8), show it"
	@echo "make fo_dp_sgd        the whole paper: 645 tasks of about a minute; OPTIONS='dataset=cifar10,cifar100' without SVHN"
	@echo "make fo_fair          ours: every method at the same epsilon, its rate tuned, with exact tests (make fo_tuning: the grid)"
	@echo "make fo_smoke         every part of it in small on embedded data (under a minute)"
	@echo "                      all of these take OPTIONS='data.dir=PATH threads=4'"
	@echo "make dirichlet_cpu    the Dirichlet paper's comparisons at sizes for two cores (about 30 minutes); dirichlet_smoke: in small"
	@echo "make dirichlet_table1 its full schedules, for a GPU (table1 to table5, figure2, figure3, sampling, optimizers)"
	@echo "make demonstrate_dirichlet   what the Dirichlet mechanism's claimed epsilon doesn't cover, in numbers (some minutes)"
	@echo "make hero             DP-Hero: 3,720 tasks (hero_mnist, hero_fashionmnist, hero_cifar10, hero_variants, hero_convergence)"
	@echo "make hero_smoke       every part of its report in small on embedded data (under a minute)"
	@echo "make grand            every mechanism with a proved epsilon at equal epsilon: 1,360 tasks and a leaderboard"
	@echo "make grand_smoke      every part of its report in small on embedded data (under a minute)"
	@echo "make bench   time dpsweep, Opacus and plain training side by side (THREADS=1), figures in outputs/bench.json"
	@echo "make bench-check   the same, and fail where a ratio misses its bar"

.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

demo: .venv/.installed
	$(DPSWEEP) run suite=quickstart
	$(DPSWEEP) report suite=quickstart

# Times are compared in table 6 and figure 4, so their tasks have the machine to themselves; they come before the rest.
dp_rvfl_table6 dp_rvfl_figure4: override OPTIONS += executor=inline
dp_rvfl_table10: override OPTIONS += repeat=null,2,3

# The report of all tasks is that of one execution; table 10 is written last, since it shows three.
dp_rvfl: .venv/.installed dp_rvfl_table6 dp_rvfl_figure4 dp_rvfl_table10
	$(DPSWEEP) run suite=$@ $(OPTIONS)
	$(DPSWEEP) report suite=$@ $(OPTIONS)
	$(DPSWEEP) report suite=$@ table=table10 repeat=null,2,3 $(OPTIONS)

# Tables 1 and 2 of FO-DP-SGD compare times too.
fo_table1 fo_table2: override OPTIONS += executor=inline

fo_dp_sgd: fo_table1

dp_rvfl_powered dp_rvfl_smoke fo_dp_sgd fo_fair fo_tuning fo_smoke hero hero_mnist hero_fashionmnist hero_cifar10 hero_variants \
hero_convergence hero_smoke grand grand_smoke: .venv/.installed
	$(DPSWEEP) run suite=$@ $(OPTIONS)
	$(DPSWEEP) report suite=$@ $(OPTIONS)

dp_rvfl_%: .venv/.installed
	$(DPSWEEP) run suite=dp_rvfl table=$* $(OPTIONS)
	$(DPSWEEP) report suite=dp_rvfl table=$* $(OPTIONS)

fo_%: .venv/.installed
	$(DPSWEEP) run suite=fo_dp_sgd table=$* $(OPTIONS)
	$(DPSWEEP) report suite=fo_dp_sgd table=$* $(OPTIONS)

# A file's tests stay together: they share what is slow to set up, such as a Ray cluster.
test: .venv/.installed
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

# What CI runs in five rounds.
storm: .venv/.installed
	DPSWEEP_STORM_ROUNDS=50 $(BIN)/python -m pytest -s tests/test_storm.py

lint: .venv/.installed
	$(BIN)/ruff check dpsweep tests scripts
	$(BIN)/mypy

bench: .venv/.installed
	$(BIN)/python scripts/bench.py --threads $(THREADS) --json outputs/bench.json

bench-check: .venv/.installed
	$(BIN)/python scripts/bench.py --threads $(THREADS) --json outputs/bench.json --check

# The Dirichlet paper: a suite a dataset, and each of its ablations.
dirichlet_table1: suite = dirichlet_cifar10
dirichlet_table2: suite = dirichlet_mnist
dirichlet_table3: suite = dirichlet_dermamnist
dirichlet_table4: suite = dirichlet_fashionmnist
dirichlet_table5: suite = dirichlet_svhn
dirichlet_figure2: suite = dirichlet_alpha_lr
dirichlet_sampling dirichlet_optimizers dirichlet_cpu dirichlet_smoke: suite = $@
dirichlet_figure3: dirichlet_table4 dirichlet_table5

dirichlet_table1 dirichlet_table2 dirichlet_table3 dirichlet_table4 dirichlet_table5 dirichlet_figure2 dirichlet_sampling \
dirichlet_optimizers dirichlet_cpu dirichlet_smoke: .venv/.installed
	$(DPSWEEP) run suite=$(suite) $(OPTIONS)
	$(DPSWEEP) report suite=$(suite) $(OPTIONS)

demonstrate_dirichlet: .venv/.installed
	$(BIN)/python scripts/demonstrate_dirichlet.py

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
