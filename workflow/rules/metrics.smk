# Measurements of one model on one problem set; figures and tables aggregate them.
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
        code=code_of("evaluate"),
    shell:
        "python -m mrt.evaluate --measure accuracy --problems {input.problems} --rollouts {input.rollouts}"
        " --grades {input.grades} --out {output} > {log} 2>&1"


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
        code=code_of("evaluate"),
        ks=[f"--ks {k}" for k in experiment.evaluation.k],
    shell:
        "python -m mrt.evaluate --measure maj --rollouts {input.rollouts} --grades {input.grades} {params.ks}"
        " --out {output} > {log} 2>&1"


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
        code=code_of("evaluate"),
        votes=[f"--votes {p}" for p in experiment.evaluation.votes],
    shell:
        "python -m mrt.evaluate --measure prefixes --prover {input.prover} --grades {input.grades} {params.votes}"
        " --out {output} > {log} 2>&1"


rule measure_regret:
    input:
        artifact("progress"),
    output:
        artifact("metrics", "regret.parquet"),
    log:
        log_of("measure_regret", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=code_of("evaluate"),
        budgets=[f"--budgets {b}" for b in experiment.evaluation.budgets],
    shell:
        "python -m mrt.evaluate --measure regret --progress {input} {params.budgets} --out {output} > {log} 2>&1"


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
        code=code_of("evaluate"),
    shell:
        "python -m mrt.evaluate --measure episodes --episodes {input} --out {output} > {log} 2>&1"
