# Training sets: which of the parent's traces a model learns from (Algorithm 1).
rule star_set:
    input:
        rollouts=of_parent("rollouts"),
        grades=of_parent("grades", "rollouts.parquet"),
        episodes=lambda w: of_parent("episodes")(w) if experiment.backtracking else [],
    output:
        examples=f"{RESULTS}/sets/{{model}}.parquet",
        rules=f"{RESULTS}/sets/{{model}}.rules.parquet",
    log:
        log_of("star_set", "model"),
    wildcard_constraints:
        model=trained_with("star"),
    conda:
        ANALYSIS
    params:
        code=code_of("training.sets"),
        parameterization=FORCING,
        episodes=lambda w, input: f"--episodes {quote(input.episodes)}" if input.episodes else "",
    shell:
        "python -m mrt.training.sets --method star --rollouts {input.rollouts:q} --grades {input.grades:q} {params.episodes}"
        " --parameterization {params.parameterization:q}"
        " --out {output.examples:q} --out_rules {output.rules:q} > {log:q} 2>&1"


rule mrt_set:
    input:
        rollouts=of_parent("rollouts"),
        grades=of_parent("grades", "rollouts.parquet"),
        episodes=of_parent("episodes"),
        progress=of_parent("progress"),
        prover=of_parent("prover"),
        prover_grades=of_parent("grades", "prover.parquet"),
    output:
        examples=f"{RESULTS}/sets/{{model}}.parquet",
        rules=f"{RESULTS}/sets/{{model}}.rules.parquet",
    log:
        log_of("mrt_set", "model"),
    wildcard_constraints:
        model=trained_with("mrt"),
    conda:
        ANALYSIS
    params:
        code=code_of("training.sets"),
        rules=lambda w: slice_of(experiment.models[w.model].rules),
        parameterization=FORCING,
    shell:
        "python -m mrt.training.sets --method mrt --rollouts {input.rollouts:q} --grades {input.grades:q} --episodes {input.episodes:q}"
        " --progress {input.progress:q} --prover {input.prover:q} --prover_grades {input.prover_grades:q}"
        " --rules {params.rules:q} --parameterization {params.parameterization:q}"
        " --out {output.examples:q} --out_rules {output.rules:q} > {log:q} 2>&1"


# A cold start: right completions of a model without thoughts, or of a teacher, as thoughts with an answer.
rule cold_start_set:
    input:
        checkpoint=lambda w: weights_input(parent_of(w)),
        problems=lambda w: f"{RESULTS}/problems/{experiment.models[w.model].problems}.parquet",
        rollouts=of_parent("rollouts"),
        grades=of_parent("grades", "rollouts.parquet"),
    output:
        examples=f"{RESULTS}/sets/{{model}}.parquet",
        rules=f"{RESULTS}/sets/{{model}}.rules.parquet",
    log:
        log_of("cold_start_set", "model"),
    wildcard_constraints:
        model=trained_with("cold_start"),
    conda:
        INFERENCE
    params:
        code=code_of("training.cold_start"),
        parent=lambda w: model_options(parent_of(w)),
        prompt=prompt_of,
        settings=lambda w: slice_of(experiment.models[w.model].cold_start),
    shell:
        "python -m mrt.training.cold_start {params.parent} --problems {input.problems:q} --rollouts {input.rollouts:q}"
        " --grades {input.grades:q} --settings {params.settings:q} --prompt {params.prompt:q}"
        " --out {output.examples:q} --out_rules {output.rules:q} > {log:q} 2>&1"
