# Datasets: one schema for all sources.
rule build_dataset:
    input:
        file=ancient(lambda w: str(experiment.problems[w.dataset].file or "") or []),
        disjoint=lambda w: [paths.problems(other) for other in experiment.problems[w.dataset].disjoint_from],
    output:
        paths.problems(),
    log:
        paths.log("build_dataset", "dataset"),
    localrule: True
    conda:
        ANALYSIS
    params:
        code=options.dataset_code,
        content=lambda w: content_of(experiment.problems[w.dataset].local),
        settings=options.dataset,
        execution=files_of("disjoint"),
    shell:
        "python -m mrt.problems.build --name {wildcards.dataset} --settings {params.settings:q}"
        " --execution {params.execution:q} --out {output:q} > {log:q} 2>&1"


# A training set that shares problems with an evaluation set is an error.
rule check_contamination:
    input:
        problems=paths.problems(),
        evaluation=[paths.problems(d) for d in experiment.evaluation.problems],
    output:
        paths.contamination(),
    log:
        paths.log("check_contamination", "dataset"),
    priority: 10  # early, as an error here makes the whole run useless
    localrule: True
    conda:
        ANALYSIS
    params:
        code=options.code("problems.contamination"),
        evaluation=json.dumps({d: paths.problems(d) for d in experiment.evaluation.problems}),
    shell:
        "python -m mrt.problems.contamination --problems {input.problems:q} --evaluation {params.evaluation:q}"
        " --out {output:q} > {log:q} 2>&1"
