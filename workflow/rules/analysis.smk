# Analysis: J, progress, and the measures of one model on one dataset, which figures and tables aggregate.


# J and progress of every prefix (Definition 6.1).
rule measure_progress:
    input:
        prover=paths.artifact("prover"),
        grades=paths.artifact("grades", "prover.parquet"),
    output:
        paths.artifact("progress"),
    log:
        paths.log("measure_progress", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=options.code("analysis.progress"),
    shell:
        "python -m mrt.analysis.progress --prover {input.prover:q} --grades {input.grades:q} --out {output:q} > {log:q} 2>&1"


rule measure_accuracy:
    input:
        problems=paths.problems(),
        rollouts=paths.artifact("rollouts"),
        grades=paths.artifact("grades", "rollouts.parquet"),
    output:
        paths.artifact("metrics", "accuracy.parquet"),
    log:
        paths.log("measure_accuracy", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=options.code("analysis.evaluate"),
        closing=experiment.parameterization.closing,
    shell:
        "python -m mrt.analysis.evaluate --measure accuracy --problems {input.problems:q} --rollouts {input.rollouts:q}"
        " --grades {input.grades:q} --closing {params.closing:q} --out {output:q} > {log:q} 2>&1"


rule measure_maj:
    input:
        rollouts=paths.artifact("rollouts"),
        grades=paths.artifact("grades", "rollouts.parquet"),
    output:
        paths.artifact("metrics", "maj.parquet"),
    log:
        paths.log("measure_maj", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=options.code("analysis.evaluate"),
        ks=lambda w: listed("ks", experiment.ks(w.model)),
    shell:
        "python -m mrt.analysis.evaluate --measure maj --rollouts {input.rollouts:q} --grades {input.grades:q} {params.ks}"
        " --out {output:q} > {log:q} 2>&1"


rule measure_prefixes:
    input:
        prover=paths.artifact("prover"),
        grades=paths.artifact("grades", "prover.parquet"),
    output:
        paths.artifact("metrics", "prefixes.parquet"),
    log:
        paths.log("measure_prefixes", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=options.code("analysis.evaluate"),
        votes=options.votes(),
    shell:
        "python -m mrt.analysis.evaluate --measure prefixes --prover {input.prover:q} --grades {input.grades:q} {params.votes}"
        " --out {output:q} > {log:q} 2>&1"


rule measure_regret:
    input:
        progress=paths.artifact("progress"),
        forced=lambda w: paths.artifact("metrics", "budget_forcing.parquet") if options.extrapolates(w.model) else [],
    output:
        paths.artifact("metrics", "regret.parquet"),
    log:
        paths.log("measure_regret", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=options.code("analysis.evaluate"),
        budgets=options.regret,
        forced=optional("forced"),
    shell:
        "python -m mrt.analysis.evaluate --measure regret --progress {input.progress:q} {params.budgets} {params.forced}"
        " --out {output:q} > {log:q} 2>&1"


rule measure_episode_regret:
    input:
        paths.artifact("metrics", "prefixes.parquet"),
    output:
        paths.artifact("metrics", "episode_regret.parquet"),
    log:
        paths.log("measure_episode_regret", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=options.code("analysis.evaluate"),
        every=experiment.evaluation.prover.every,
    shell:
        "python -m mrt.analysis.evaluate --measure episode_regret --prefixes {input:q} --every {params.every}"
        " --out {output:q} > {log:q} 2>&1"


rule measure_budget_forcing:
    input:
        prover=paths.artifact("budget_forcing"),
        grades=paths.artifact("grades", "budget_forcing.parquet"),
    output:
        paths.artifact("metrics", "budget_forcing.parquet"),
    log:
        paths.log("measure_budget_forcing", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=options.code("analysis.evaluate"),
    shell:
        "python -m mrt.analysis.evaluate --measure budget_forcing --prover {input.prover:q} --grades {input.grades:q}"
        " --out {output:q} > {log:q} 2>&1"


rule measure_linearized:
    input:
        prover=paths.artifact("linearized"),
        grades=paths.artifact("grades", "linearized.parquet"),
    output:
        paths.artifact("metrics", "linearized.parquet"),
    log:
        paths.log("measure_linearized", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=options.code("analysis.evaluate"),
        ks=listed("ks", experiment.linearized_ks),
    shell:
        "python -m mrt.analysis.evaluate --measure linearized --prover {input.prover:q} --grades {input.grades:q} {params.ks}"
        " --out {output:q} > {log:q} 2>&1"


rule count_episodes:
    input:
        paths.artifact("episodes"),
    output:
        paths.artifact("metrics", "episodes.parquet"),
    log:
        paths.log("count_episodes", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=options.code("analysis.evaluate"),
    shell:
        "python -m mrt.analysis.evaluate --measure episodes --episodes {input:q} --out {output:q} > {log:q} 2>&1"
