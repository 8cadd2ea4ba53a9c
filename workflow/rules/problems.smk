# Datasets: one schema, whatever they come from.
rule build_dataset:
    input:
        file=ancient(problem_file),
        disjoint=lambda w: [f"{RESULTS}/problems/{d}.parquet" for d in experiment.problems[w.dataset].disjoint_from],
    output:
        f"{RESULTS}/problems/{{dataset}}.parquet",
    log:
        log_of("build_dataset", "dataset"),
    localrule: True
    conda:
        ANALYSIS
    params:
        code=code_of("problems.build"),
        content=lambda w: content_of(experiment.problems[w.dataset].file),
        dataset=lambda w: slice_of(experiment.problems[w.dataset]),
        disjoint=lambda w, input: [f"--disjoint {quote(path)}" for path in input.disjoint],
    shell:
        "python -m mrt.problems.build --name {wildcards.dataset} --set {params.dataset:q} {params.disjoint}"
        " --out {output:q} > {log:q} 2>&1"


# A training set that shares problems with an evaluation set is an error.
rule check_contamination:
    input:
        problems=f"{RESULTS}/problems/{{dataset}}.parquet",
        evaluation=expand(f"{RESULTS}/problems/{{d}}.parquet", d=experiment.evaluation.problems),
    output:
        f"{RESULTS}/problems/{{dataset}}.contamination.parquet",
    log:
        log_of("check_contamination", "dataset"),
    priority: 10  # early: a run that ends so is for nothing
    localrule: True
    conda:
        ANALYSIS
    params:
        code=code_of("problems.contamination"),
        evaluation=json.dumps({d: f"{RESULTS}/problems/{d}.parquet" for d in experiment.evaluation.problems}),
    shell:
        "python -m mrt.problems.contamination --problems {input.problems:q} --evaluation {params.evaluation:q} --out {output:q} > {log:q} 2>&1"
