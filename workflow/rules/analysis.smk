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
    resources:
        mem_mb=job_resources.reading("force_answers", NUMBERS),
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
    resources:
        mem_mb=job_resources.reading("sample_rollouts"),
    params:
        code=options.code("analysis.evaluate"),
        settings=options_of(measure="accuracy", closing=measuring.parameterization(experiment).closing),
    shell:
        evaluate("problems", "rollouts", "grades")


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
        settings=lambda w: options_of(
            measure="maj",
            ks=measuring.ks(experiment, w.model),
            inserted=measuring.inserted_tokens(experiment, w.model),
        ),
    shell:
        evaluate("rollouts", "grades")


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
    resources:
        mem_mb=job_resources.reading("force_answers", NUMBERS),
    params:
        code=options.code("analysis.evaluate"),
        settings=options.votes(),
    shell:
        evaluate("prover", "grades")


rule measure_regret:
    input:
        progress=paths.artifact("progress"),
        forced=lambda w: (
            paths.artifact("metrics", "budget_forcing.parquet")
            if measuring.extrapolated_budgets(experiment, w.model)
            else []
        ),
    output:
        paths.artifact("metrics", "regret.parquet"),
    log:
        paths.log("measure_regret", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=options.code("analysis.evaluate"),
        settings=options.regret,
        forced=optional("forced"),
    shell:
        evaluate("progress", more="{params.forced}")


rule measure_episode_regret:
    input:
        prefixes=paths.artifact("metrics", "prefixes.parquet"),
    output:
        paths.artifact("metrics", "episode_regret.parquet"),
    log:
        paths.log("measure_episode_regret", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=options.code("analysis.evaluate"),
        settings=options_of(measure="episode_regret", every=experiment.evaluation.prover.every),
    shell:
        evaluate("prefixes")


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
        settings=options_of(measure="budget_forcing"),
    shell:
        evaluate("prover", "grades")


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
        settings=options_of(measure="linearized", ks=measuring.linearized_ks(experiment)),
    shell:
        evaluate("prover", "grades")


rule count_episodes:
    input:
        episodes=paths.artifact("episodes"),
    output:
        paths.artifact("metrics", "episodes.parquet"),
    log:
        paths.log("count_episodes", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=options.code("analysis.evaluate"),
        settings=options_of(measure="episodes"),
    shell:
        evaluate("episodes")
