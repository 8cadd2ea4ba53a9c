"""Meta Reinforcement Fine-Tuning, from problems to regret plots: see README.md and docs/architecture.md."""

import gc
import os
import sys
import warnings

from snakemake.utils import min_version

min_version("9.27.1")  # older versions were not tried
# Snakemake 9.27 never awaits some sizes of inputs, which the profile's `30 * attempt` makes it compute.
warnings.filterwarnings("ignore", message="coroutine 'InputFiles", category=RuntimeWarning)
gc.set_threshold(200_000, 50, 100)  # plans of thousands of jobs take a tenth less time
sys.path.insert(0, workflow.basedir)  # as a module of another workflow, Snakemake does so itself
from mrt.core.lock import refuse_if_superseded
from workflow import running, start
from workflow.terminal import print_jobs, print_results

refuse_if_superseded()  # a job of an earlier run would remove the outputs of a later one
# Stages run with the Python that runs Snakemake, activated or not; conda environments come before it.
os.environ.update(PATH=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]))
start.import_from_here()
start.fork_stages()
start.limit_gpus(workflow)
shown = print_jobs(workflow)
if planned := start.planned_config():
    config.clear()
    config.update(planned)
# A config given by --configfile replaces the default one: Snakemake would otherwise merge them.
if "models" not in config:
    from mrt.config.load import check_yaml

    try:
        check_yaml("config.yaml")
    except ValueError as error:
        raise WorkflowError(str(error))

    configfile: "config.yaml"


if "running" in config:
    raise WorkflowError(
        "--config running= is not a setting: a run waits for jobs of an earlier run by itself (docs/operations.md)"
    )


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


if running.is_job():
    running.record_in_jobs(workflow)
else:
    start.refuse_placeholders(workflow, config)
    running.tell_of_unknown_records(experiment.results)
    start.tell_of_short_trainings(experiment)
start.prepare(workflow, experiment, options.fingerprints, config)


onstart:
    start.begin()
    traces_page.record()


onsuccess:
    labels = {name: measuring.style(experiment, name)["label"] for name in experiment.models}
    print_results(workflow, paths.results, labels, shown.made, workflow.dag_settings.targets)
    if (
        workflow.dag_settings.forceall and not workflow.dag_settings.targets
    ):  # all results were made again, or touched
        running.claim_records(experiment.results, again=True)


rule all:
    default_target: True
    input:
        figures.all(),
        measures.unread(figures.read()),
        rules.traces.output,
        rules.index.output,
        paths.set_rules(),
        paths.contamination_checks(),
        f"{paths.results}/tables/provenance.md",
