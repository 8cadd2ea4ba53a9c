# Sampling with vLLM: rollouts, the meta-prover's answers, budget forcing, solution trees, attempts in a row.
# A `*_shard` rule is a shard of a stage: it samples its share of what is not cached yet, and caches it.


# Rollouts: completions of every problem.
rule sample_rollouts:
    input:
        checkpoint=paths.weights,
        problems=paths.problems(),
        shards=paths.shards("rollouts"),
    output:
        paths.artifact("rollouts"),
    log:
        paths.log("sample_rollouts", "model", "dataset"),
    wildcard_constraints:
        model=any_of(paths.sampled),
    cache: True
    conda:
        SAMPLING
    threads: experiment.engine_threads
    resources:
        **job_resources.sampling("sample_rollouts", gathers=True),
    params:
        code=options.code("sampling.rollouts"),
        weights=lambda w: options.identity(w.model),
        settings=options.rollouts,
        engine_decides=options.engine_decides(),
        execution=options.sampled_by("rollouts"),
    shell:
        with_threads(
            "mrt.core.fork_server mrt.sampling.rollouts --settings {params.settings:q} --execution"
            " {params.execution:q} --problems {input.problems:q} --out {output:q}"
        )


use rule sample_rollouts as sample_rollouts_shard with:
    input:
        checkpoint=paths.weights,
        problems=paths.problems(),
    output:
        touch(paths.shard("rollouts")),
    log:
        paths.log("sample_rollouts", "model", "dataset", "shard"),
    cache: False
    resources:
        **job_resources.sampling("sample_rollouts", shard=True),
    params:
        execution=options.sampled_by("rollouts", shard=True),


# Rollouts that somebody sampled elsewhere.
rule import_rollouts:
    input:
        file=ancient(lambda w: experiment.models[w.model].rollouts.file),
        problems=paths.problems(),
    output:
        rollouts=paths.artifact("rollouts"),
        reading=paths.artifact("rollouts", "reading.parquet"),
    log:
        paths.log("import_rollouts", "model", "dataset"),
    wildcard_constraints:
        model=any_of(lineage.imported(experiment)),
    conda:
        ANALYSIS
    params:
        code=options.code("sampling.imports"),
        content=lambda w: content_of(experiment.models[w.model].rollouts.file),
        settings=options.completions,
    shell:
        "python -m mrt.sampling.imports --settings {params.settings:q} --file {input.file:q}"
        " --problems {input.problems:q} --out {output.rollouts:q} --reading {output.reading:q} > {log:q} 2>&1"


# Forced answers of the meta-prover at every prefix (Equation 4); mu is the model that thought, or another one.
rule force_answers:
    input:
        checkpoint=paths.mu_weights,
        rollouts=paths.artifact("rollouts"),
        episodes=paths.artifact("episodes"),
        shards=paths.shards("prover"),
        problems=options.prover_golds,
    output:
        paths.artifact("prover"),
    log:
        paths.log("force_answers", "model", "dataset"),
    wildcard_constraints:
        model=any_of(paths.sampled),
    cache: True
    conda:
        SAMPLING
    threads: experiment.engine_threads
    resources:
        **job_resources.sampling("force_answers", gathers=True),
    params:
        code=options.prover_code,
        stage=options.prover_stage,
        problems=optional("problems"),
        weights=lambda w: options.identity(options.sampler("prover", w)),
        settings=options.prover,
        engine_decides=options.engine_decides("prover"),
        execution=options.sampled_by("prover"),
    shell:
        with_threads(
            "mrt.core.fork_server mrt.{params.stage} --settings {params.settings:q} --execution"
            " {params.execution:q} --rollouts {input.rollouts:q} --episodes {input.episodes:q} {params.problems}"
            " --out {output:q}"
        )


use rule force_answers as force_answers_shard with:
    input:
        checkpoint=paths.mu_weights,
        rollouts=paths.artifact("rollouts"),
        episodes=paths.artifact("episodes"),
        problems=options.prover_golds,
    output:
        touch(paths.shard("prover")),
    log:
        paths.log("force_answers", "model", "dataset", "shard"),
    cache: False
    resources:
        **job_resources.sampling("force_answers", shard=True),
    params:
        execution=options.sampled_by("prover", shard=True),


# Budget forcing: thoughts made to go on, and their answers after 0, 2, 4, 6, 8 extensions (Appendix F).
rule force_budget:
    input:
        checkpoint=paths.weights,
        rollouts=paths.artifact("rollouts"),
        episodes=paths.artifact("episodes"),
        shards=paths.shards("budget_forcing"),
    output:
        answers=paths.artifact("budget_forcing"),
        thoughts=paths.artifact("budget_forcing", "thoughts.parquet"),
    log:
        paths.log("force_budget", "model", "dataset"),
    wildcard_constraints:
        model=any_of(paths.sampled),
    cache: True
    conda:
        SAMPLING
    threads: experiment.engine_threads
    resources:
        **job_resources.sampling("force_budget", gathers=True),
    params:
        code=options.code("sampling.budget_forcing"),
        weights=lambda w: options.identity(w.model),
        settings=options.budget_forcing,
        engine_decides=options.engine_decides(),
        execution=options.sampled_by("budget_forcing"),
        out=lambda w, output: f"--out {quote(output.answers)} --out_thoughts {quote(output.thoughts)}",
    shell:
        with_threads(
            "mrt.core.fork_server mrt.sampling.budget_forcing --settings {params.settings:q} --execution"
            " {params.execution:q} --rollouts {input.rollouts:q} --episodes {input.episodes:q} {params.out}"
        )


use rule force_budget as force_budget_shard with:
    input:
        checkpoint=paths.weights,
        rollouts=paths.artifact("rollouts"),
        episodes=paths.artifact("episodes"),
    output:
        touch(paths.shard("budget_forcing")),
    log:
        paths.log("force_budget", "model", "dataset", "shard"),
    cache: False
    resources:
        **job_resources.sampling("force_budget", shard=True),
    params:
        execution=options.sampled_by("budget_forcing", shard=True),
        out=lambda w, output: f"--out {quote(output[0])} --out_thoughts {quote(output[0])}",


# Solution trees: beam search against the outcome (Appendix A.2).
rule search_tree:
    input:
        checkpoint=paths.weights,
        problems=paths.problems(),
        shards=paths.shards("trees"),
    output:
        paths.artifact("trees"),
    log:
        paths.log("search_tree", "model", "dataset"),
    wildcard_constraints:
        model=any_of(paths.sampled),
    cache: True
    conda:
        SAMPLING
    threads: experiment.engine_threads
    resources:
        **job_resources.sampling("search_tree", gathers=True),
    params:
        code=options.judging("sampling.tree"),
        weights=lambda w: options.identity(w.model),
        settings=options.tree,
        engine_decides=options.engine_decides(),
        execution=options.sampled_by("trees"),
    shell:
        with_threads(
            "mrt.core.fork_server mrt.sampling.tree --settings {params.settings:q} --execution"
            " {params.execution:q} --problems {input.problems:q} --out {output:q}"
        )


use rule search_tree as search_tree_shard with:
    input:
        checkpoint=paths.weights,
        problems=paths.problems(),
    output:
        touch(paths.shard("trees")),
    log:
        paths.log("search_tree", "model", "dataset", "shard"),
    cache: False
    resources:
        **job_resources.sampling("search_tree", shard=True),
    params:
        execution=options.sampled_by("trees", shard=True),


# Attempt after attempt in one text, in a sliding window (Section 8.4).
rule linearize:
    input:
        checkpoint=paths.weights,
        problems=paths.problems(),
        shards=paths.shards("linearized"),
    output:
        paths.artifact("linearized"),
    log:
        paths.log("linearize", "model", "dataset"),
    wildcard_constraints:
        model=any_of(paths.sampled),
    cache: True
    conda:
        SAMPLING
    threads: experiment.engine_threads
    resources:
        **job_resources.sampling("linearize", gathers=True),
    params:
        code=options.code("sampling.linearized"),
        weights=lambda w: options.identity(w.model),
        settings=options.linearized,
        engine_decides=options.engine_decides(),
        execution=options.sampled_by("linearized"),
    shell:
        with_threads(
            "mrt.core.fork_server mrt.sampling.linearized --settings {params.settings:q} --execution"
            " {params.execution:q} --problems {input.problems:q} --out {output:q}"
        )


use rule linearize as linearize_shard with:
    input:
        checkpoint=paths.weights,
        problems=paths.problems(),
    output:
        touch(paths.shard("linearized")),
    log:
        paths.log("linearize", "model", "dataset", "shard"),
    cache: False
    resources:
        **job_resources.sampling("linearize", shard=True),
    params:
        execution=options.sampled_by("linearized", shard=True),
