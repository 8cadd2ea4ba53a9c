# Shared by all rules: the experiment's configuration, and its paths, options, resources and figures.
import json
from functools import partial
from itertools import takewhile
from shlex import quote

from mrt.config import lineage, measuring
from mrt.config.load import load
from mrt.core.digest import digest_of_files, options_of
from mrt.figures.report import STYLE
from workflow.figures import Figures
from workflow.measures import Measures
from workflow.options import Options, content_of, files_of, optional
from workflow.paths import Paths, any_of
from workflow.running import recorded_name
from workflow.resources import NUMBERS, JobResources
from workflow.sampling import SAMPLED, Sampling
from workflow.traces import TracesPage

try:
    experiment = load(config, () if planned else workflow.configfiles)  # files may have been edited since the plan
except ValueError as error:
    raise WorkflowError(str(error))

if isinstance(config.get("claims"), str):  # jobs on a cluster get the claims of the plan, as the table may be edited
    config["claims"] = [claim.model_dump(mode="json", exclude_unset=True) for claim in experiment.claims]
experiment.results = recorded_name(experiment.results)  # Snakemake's records are under this name
paths = Paths(experiment)
job_resources = JobResources(experiment)
options = Options(experiment, paths, job_resources)
sampling = Sampling(experiment, paths, options)
measures = Measures(experiment, paths, options)
try:
    figures = Figures(experiment, paths)
except ValueError as error:
    raise WorkflowError(str(error))

traces_page = TracesPage(experiment, paths)
ANALYSIS, SAMPLING, TRAINING = (f"../../envs/{room}.yaml" for room in ("analysis", "sampling", "training"))


def with_threads(stage):
    """The command of a stage that computes with torch, on the threads of its job."""
    return f"OMP_NUM_THREADS={{threads}} python -m {stage} > {{log:q}} 2>&1"


def group_of(kind):
    """The group of all rules of a kind, as the profile defines it; it is known only when jobs are planned."""
    return lambda w: workflow.group_settings.overwrite_groups.get(kind)


wildcard_constraints:
    model=any_of(experiment.models),
    dataset=any_of(experiment.problems),
