# Forced answers of the meta-prover at every prefix (Equation 4); mu is the model that thought.
rule force_answers:
    input:
        checkpoint=checkpoint_input,
        rollouts=artifact("rollouts"),
        episodes=artifact("episodes"),
    output:
        artifact("prover"),
    log:
        log_of("force_answers", "model", "dataset"),
    wildcard_constraints:
        model=any_of(SAMPLED),
    conda:
        INFERENCE
    threads: experiment.engine_threads
    params:
        model=model_options,
        settings=lambda w: slice_of(draws(w).prover),
        engine=lambda w: slice_of(experiment.engine),
        seed=experiment.seed,
    shell:
        "OMP_NUM_THREADS={threads} python -m mrt.prover {params.model} --rollouts {input.rollouts}"
        " --episodes {input.episodes} --names {wildcards.model} --names {wildcards.dataset} --seed {params.seed}"
        " --settings {params.settings:q} --engine {params.engine:q} --out {output} > {log} 2>&1"
