# Measurements of one model on one dataset; figures and tables aggregate them.
rule measure_accuracy:
    input:
        problems=f"{RESULTS}/problems/{{dataset}}.parquet",
        rollouts=artifact("rollouts"),
        grades=artifact("grades", "rollouts.parquet"),
    output:
        artifact("metrics", "accuracy.parquet"),
    log:
        log_of("measure_accuracy", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=code_of("analysis.evaluate"),
        closing=experiment.parameterization.closing,
    shell:
        "python -m mrt.analysis.evaluate --measure accuracy --problems {input.problems:q} --rollouts {input.rollouts:q}"
        " --grades {input.grades:q} --closing {params.closing:q} --out {output:q} > {log:q} 2>&1"


rule measure_maj:
    input:
        rollouts=artifact("rollouts"),
        grades=artifact("grades", "rollouts.parquet"),
    output:
        artifact("metrics", "maj.parquet"),
    log:
        log_of("measure_maj", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=code_of("analysis.evaluate"),
        ks=lambda w: [f"--ks {k}" for k in experiment.ks(w.model)],
    shell:
        "python -m mrt.analysis.evaluate --measure maj --rollouts {input.rollouts:q} --grades {input.grades:q} {params.ks}"
        " --out {output:q} > {log:q} 2>&1"


rule measure_prefixes:
    input:
        prover=artifact("prover"),
        grades=artifact("grades", "prover.parquet"),
    output:
        artifact("metrics", "prefixes.parquet"),
    log:
        log_of("measure_prefixes", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=code_of("analysis.evaluate"),
        votes=[f"--votes {p}" for p in experiment.evaluation.votes],
    shell:
        "python -m mrt.analysis.evaluate --measure prefixes --prover {input.prover:q} --grades {input.grades:q} {params.votes}"
        " --out {output:q} > {log:q} 2>&1"


rule measure_regret:
    input:
        progress=artifact("progress"),
        forced=lambda w: artifact("metrics", "budget_forcing.parquet") if extrapolates(w.model) else [],
    output:
        artifact("metrics", "regret.parquet"),
    log:
        log_of("measure_regret", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=code_of("analysis.evaluate"),
        budgets=[f"--budgets {b}" for b in experiment.evaluation.budgets],
        forced=option("forced"),
        extrapolated=lambda w: [f"--extrapolated {b}" for b in extrapolated_budgets(w.model)],
    shell:
        "python -m mrt.analysis.evaluate --measure regret --progress {input.progress:q} {params.budgets} {params.forced}"
        " {params.extrapolated} --out {output:q} > {log:q} 2>&1"


rule measure_episode_regret:
    input:
        artifact("metrics", "prefixes.parquet"),
    output:
        artifact("metrics", "episode_regret.parquet"),
    log:
        log_of("measure_episode_regret", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=code_of("analysis.evaluate"),
        every=experiment.evaluation.prover.every,
    shell:
        "python -m mrt.analysis.evaluate --measure episode_regret --prefixes {input:q} --every {params.every}"
        " --out {output:q} > {log:q} 2>&1"


rule measure_budget_forcing:
    input:
        prover=artifact("budget_forcing"),
        grades=artifact("grades", "budget_forcing.parquet"),
    output:
        artifact("metrics", "budget_forcing.parquet"),
    log:
        log_of("measure_budget_forcing", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=code_of("analysis.evaluate"),
    shell:
        "python -m mrt.analysis.evaluate --measure budget_forcing --prover {input.prover:q} --grades {input.grades:q}"
        " --out {output:q} > {log:q} 2>&1"


rule measure_linearized:
    input:
        prover=artifact("linearized"),
        grades=artifact("grades", "linearized.parquet"),
    output:
        artifact("metrics", "linearized.parquet"),
    log:
        log_of("measure_linearized", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=code_of("analysis.evaluate"),
        ks=lambda w: [f"--ks {k}" for k in experiment.linearized_ks],
    shell:
        "python -m mrt.analysis.evaluate --measure linearized --prover {input.prover:q} --grades {input.grades:q} {params.ks}"
        " --out {output:q} > {log:q} 2>&1"


rule count_episodes:
    input:
        artifact("episodes"),
    output:
        artifact("metrics", "episodes.parquet"),
    log:
        log_of("count_episodes", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=code_of("analysis.evaluate"),
    shell:
        "python -m mrt.analysis.evaluate --measure episodes --episodes {input:q} --out {output:q} > {log:q} 2>&1"
