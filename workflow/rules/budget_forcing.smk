# Budget forcing: thoughts made to go on, and their answers after 0, 2, 4, 6, 8 extensions (Appendix F).
rule force_budget:
    input:
        checkpoint=lambda w: weights_input(w.model),
        rollouts=artifact("rollouts"),
        episodes=artifact("episodes"),
        parts=parts_of("budget_forcing"),
    output:
        answers=artifact("budget_forcing"),
        thoughts=artifact("budget_forcing", "thoughts.parquet"),
    log:
        log_of("force_budget", "model", "dataset"),
    wildcard_constraints:
        model=any_of(SAMPLED),
    cache: True
    conda:
        INFERENCE
    threads: experiment.engine_threads
    resources:
        **sampling_resources("force_budget", spread_gpus),
    params:
        part=gathered,
        out=lambda w, output: f"--out {quote(output.answers)} --out_thoughts {quote(output.thoughts)}",
        code=code_of("sampling.budget_forcing"),
        model=lambda w: model_options(w.model),
        weights=lambda w: identity_of(w.model),
        settings=slice_of(experiment.forcing),
        template=slice_of(experiment.template),
        engine=engine_options,
        engine_decides=engine_decides,
        seed=experiment.seed,
        keep=f"{RESULTS}/.cache/budget_forcing/{{model}}/{{dataset}}",
    shell:
        "OMP_NUM_THREADS={threads} python -m mrt.core.fork_server mrt.sampling.budget_forcing {params.model} --rollouts {input.rollouts:q}"
        " --episodes {input.episodes:q} --names {wildcards.model} --names {wildcards.dataset} --seed {params.seed}"
        " --settings {params.settings:q} --template {params.template:q} --engine {params.engine:q} --keep.folder {params.keep:q}{params.part}"
        " {params.out} > {log:q} 2>&1"


# A part of it, for a job of its own: draws its share of what is not kept yet, and keeps it.
use rule force_budget as force_budget_part with:
    input:
        checkpoint=lambda w: weights_input(w.model),
        rollouts=artifact("rollouts"),
        episodes=artifact("episodes"),
    output:
        touch(f"{RESULTS}/.cache/budget_forcing/{{model}}/{{dataset}}/part-{{part}}-of-{SHARDS}"),
    log:
        log_of("force_budget", "model", "dataset", "part"),
    cache: False
    resources:
        **sampling_resources("force_budget", sampling_gpus, SHARDS),
    params:
        part=lambda w: f" --keep.part {w.part}/{SHARDS}",
        out=lambda w, output: f"--out {quote(output[0])} --out_thoughts {quote(output[0])}",
