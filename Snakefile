"""Meta Reinforcement Fine-Tuning, from problems to regret plots: see README.md and docs/architecture.md."""

import gc
import os
import sys
import warnings

from snakemake.utils import min_version

min_version("9.27.1")  # older ones were not tried
# Snakemake 9.27 forgets some sizes of inputs that it began to ask for, for the profile's `30 * attempt`.
warnings.filterwarnings("ignore", message="coroutine 'InputFiles", category=RuntimeWarning)
gc.set_threshold(200_000, 50, 100)  # plans of thousands of jobs come a tenth sooner
sys.path.insert(0, workflow.basedir)
from workflow.running import guard
from workflow.start import (
    fork_stages,
    hold_to_the_plan,
    planned_config,
    refuse_chat_templates,
    refuse_missing_reporters,
    refuse_what_does_not_fit,
    remember_signatures,
    start_early,
)
from workflow.terminal import print_jobs, print_results

# Stages run with the Python that runs Snakemake, activated or not; conda environments come before it.
os.environ.update(PATH=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]))
fork_stages(workflow)
remember_signatures()
print_jobs(workflow)
if planned := planned_config(workflow):
    config.clear()
    config.update(planned)
# A config given by --configfile stands alone: Snakemake would otherwise merge it into the default one.
if "models" not in config:
    from mrt.config.load import check_yaml

    try:
        check_yaml("config.yaml")
    except ValueError as error:
        raise WorkflowError(str(error))

    configfile: "config.yaml"


# With jobs that a killed Snakemake left in SLURM: wait, cancel or stop. No part of the experiment.
left_running = config.pop("running", "wait")


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/problems.smk"
include: "workflow/rules/sampling.smk"
include: "workflow/rules/episodes.smk"
include: "workflow/rules/grading.smk"
include: "workflow/rules/analysis.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/traces.smk"


guard(workflow, paths.results, left_running)


onstart:
    hold_to_the_plan(workflow, options.fingerprints, config)
    refuse_what_does_not_fit(workflow)
    refuse_missing_reporters(workflow, experiment.training.report_to)
    refuse_chat_templates(workflow, experiment)
    start_early(workflow)


onsuccess:
    labels = {name: experiment.style(name)["label"] for name in experiment.models}
    print_results(workflow, paths.results, labels)


rule all:
    default_target: True
    input:
        figures.all(),
        rules.traces.output,
        paths.set_rules(),
        paths.contamination_checks(),
        f"{paths.results}/tables/provenance.md",
