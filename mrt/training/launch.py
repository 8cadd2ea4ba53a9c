"""Start a training stage on one process, on the GPUs of a node, or on several nodes of a SLURM job.

    python -m mrt.training.launch --nodes 2 --processes 8 mrt.training.sft --model ...

With GPUs, a training stage claims one GPU per process of a node (mrt.core.accelerator); its processes see only these.

A single process is this one, or a fork of the fork server (mrt.core.fork_server). Several processes on a node are
started by `torchrun`. On several nodes, `srun` starts one `torchrun` each; they meet at the node that called `srun`
(accelerate's launcher `standard`: each node gets the first one's address). Several processes shard the model with
ZeRO-3, by `zero3.json`.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mrt.core import accelerator, fork_server

# Rows of many lengths leave gaps in the memory of a GPU, which segments that can grow fill. An engine that RL spreads
# over several GPUs shares memory between processes, which such segments do not allow.
ALLOCATOR = "PYTORCH_ALLOC_CONF"
ZERO_3 = Path(__file__).with_name("zero3.json")


def torchrun(processes: int, stage: Sequence[str], environment: Mapping[str, str], nodes: int = 1) -> list[str]:
    """The command that starts a node's processes; with several nodes, `environment` is that of the SLURM step."""
    if nodes == 1:
        meeting = ["--standalone"]
    else:
        port = 20000 + int(environment["SLURM_JOB_ID"]) % 20000  # jobs on one node do not share a port
        address = environment["SLURM_LAUNCH_NODE_IPADDR"]
        meeting = ["--nnodes", str(nodes), "--node-rank", environment["SLURM_NODEID"], "--master-addr", address]
        meeting += ["--master-port", str(port)]
    module, *options = stage
    command = [sys.executable, "-m", "torch.distributed.run", *meeting, "--nproc-per-node", str(processes)]
    return [*command, "-m", "--", module, "--deepspeed", str(ZERO_3), *options]


def on_nodes(nodes: int, cpus: int, arguments: Sequence[str]) -> list[str]:
    """The command that starts this module on each node of its SLURM job; the first failure ends all.

    Since SLURM 22.05, steps do not inherit the job's CPU cores per task: without `cpus`, all processes of a node would
    share one core.
    """
    srun = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    srun += [f"--cpus-per-task={cpus}"]
    return [*srun, sys.executable, "-m", "mrt.training.launch", *arguments]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m mrt.training.launch", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--nodes", type=int, default=1, help="nodes of the SLURM job")
    parser.add_argument("--processes", type=int, default=1, help="processes on each node: its GPUs")
    parser.add_argument("--cpus", type=int, default=1, help="CPU cores on each node, if there are several")
    parser.add_argument("stage", nargs=argparse.REMAINDER, help="module and its options")
    options = parser.parse_args(arguments)
    if accelerator.gpu_available() and (
        options.nodes == options.processes == 1 or "mrt.training.sft" in options.stage[:1]
    ):
        os.environ.setdefault(ALLOCATOR, "expandable_segments:True")
    if options.nodes == options.processes == 1:
        fork_server.main(options.stage)
    step = "SLURM_STEP_ID" in os.environ and "SLURM_NODEID" in os.environ
    if options.nodes == 1 or (step and int(os.environ.get("SLURM_STEP_NUM_NODES", "1")) == options.nodes):
        command = torchrun(options.processes, options.stage, os.environ, options.nodes)
        try:
            accelerator.claim(options.processes)
        except accelerator.NoGPU as error:
            sys.exit(f"error: {error}")
    elif shutil.which("srun") and "SLURM_JOB_ID" in os.environ:
        command = on_nodes(options.nodes, options.cpus, arguments)
    else:
        sys.exit(
            f"error: this training takes {options.nodes} nodes, and several nodes are a job of SLURM; lower"
            " cluster.training_nodes, or what its memory takes (`python -m mrt plan` tells)"
        )
    sys.stdout.flush()
    os.execvp(command[0], command)  # so that the GPUs stay claimed as long as the command runs, and signals reach it


if __name__ == "__main__":
    main(sys.argv[1:])
