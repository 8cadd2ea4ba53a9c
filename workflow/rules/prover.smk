# Forced answers of the meta-prover at every prefix (Equation 4); mu is the model that thought.
rule force_answers:
    input:
        checkpoint=lambda w: weights_input(w.model),
        rollouts=artifact("rollouts"),
        episodes=artifact("episodes"),
        parts=parts_of("prover"),
        problems=golds_to_allocate,
    output:
        artifact("prover"),
    log:
        log_of("force_answers", "model", "dataset"),
    wildcard_constraints:
        model=any_of(SAMPLED),
    cache: True
    conda:
        INFERENCE
    threads: experiment.engine_threads
    resources:
        **sampling_resources("force_answers", spread_gpus),
    params:
        part=gathered,
        code=lambda w: code_of(prover_stage(w)),
        stage=prover_stage,
        allocation=allocation_options,
        model=lambda w: model_options(w.model),
        weights=lambda w: identity_of(w.model),
        settings=lambda w: slice_of(draws(w).prover),
        parameterization=FORCING,
        engine=engine_options,
        engine_decides=engine_decides,
        seed=experiment.seed,
        keep=f"{RESULTS}/.cache/prover/{{model}}/{{dataset}}",
    shell:
        "OMP_NUM_THREADS={threads} python -m mrt.core.fork_server mrt.{params.stage} {params.model} --rollouts {input.rollouts:q}"
        " --episodes {input.episodes:q} --names {wildcards.model} --names {wildcards.dataset} --seed {params.seed}"
        " --settings {params.settings:q}{params.allocation} --parameterization {params.parameterization:q} --engine {params.engine:q} --keep.folder {params.keep:q}{params.part}"
        " --out {output:q} > {log:q} 2>&1"


# A part of it, for a job of its own: draws its share of what is not kept yet, and keeps it.
use rule force_answers as force_answers_part with:
    input:
        checkpoint=lambda w: weights_input(w.model),
        rollouts=artifact("rollouts"),
        episodes=artifact("episodes"),
        problems=golds_to_allocate,
    output:
        touch(f"{RESULTS}/.cache/prover/{{model}}/{{dataset}}/part-{{part}}-of-{SHARDS}"),
    log:
        log_of("force_answers", "model", "dataset", "part"),
    cache: False
    resources:
        **sampling_resources("force_answers", sampling_gpus, SHARDS),
    params:
        part=lambda w: f" --keep.part {w.part}/{SHARDS}",
