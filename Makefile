# The commands of the README by name; .ci/run does what `make test` does.
.PHONY: laptop test test-setup test-gpu test-slurm bench league claims

laptop:
	bash setup.sh && .venv/bin/snakemake --cores 2

test:
	bash .ci/run

test-setup: # makes environments with the package index alone; 20 GB of downloads, a quarter of an hour
	bash setup.sh && .venv/bin/python -m pytest -m setup tests/project/test_setup.py

test-gpu: # the trial of a GPU (docs/gpu.md); where there is none, what needs none
	bash setup.sh && .venv/bin/python -m pytest -rs -m slow tests/project/test_gpu.py

test-slurm: # on a real SLURM, as root on Debian
	LAB=/nowhere bash tests/slurm/lab.sh install
	bash setup.sh && .venv/bin/python -m pytest -m "slow or not slow" tests/workflow/test_running.py tests/workflow/test_slurm.py tests/workflow/test_slurm_faults.py

bench: # benchmarks/results.md and its records; eleven minutes on two idle cores
	bash setup.sh && .venv/bin/python -m benchmarks

league: # the league of docs/claims.md; five hours on two cores
	bash setup.sh
	.venv/bin/snakemake --cores 2 claims runs cost early_exit --configfile config.yaml config/rl.yaml experiments/referee/world.yaml experiments/referee/config.yaml
	.venv/bin/python -m workflow.scripts.claims keep referee
	.venv/bin/python -m workflow.scripts.claims page

claims: # docs/claims.md: five training runs of each model, hours on two cores; goes on where it was stopped
	bash setup.sh
	.venv/bin/snakemake --cores 2 claims runs --configfile config.yaml experiments/star/config.yaml
	.venv/bin/snakemake --cores 2 claims runs --configfile config.yaml config/rl.yaml experiments/rl/config.yaml
	.venv/bin/snakemake --cores 2 claims runs --configfile config.yaml config/rl.yaml experiments/curriculum/models.yaml experiments/curriculum/config.yaml
	.venv/bin/snakemake --cores 2 claims runs --configfile config/backtracking.yaml experiments/backtracking/config.yaml
	.venv/bin/python -m workflow.scripts.claims keep star rl curriculum backtracking
	.venv/bin/python -m workflow.scripts.claims page
