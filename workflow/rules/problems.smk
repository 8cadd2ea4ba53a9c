# Problem sets: one schema, whatever they come from.
rule problem_set:
    input:
        file=problem_file,
        disjoint=lambda w: [f"{RESULTS}/problems/{d}.parquet" for d in experiment.problems[w.dataset].disjoint_from],
    output:
        f"{RESULTS}/problems/{{dataset}}.parquet",
    log:
        log_of("problem_set", "dataset"),
    localrule: True
    conda:
        ANALYSIS
    params:
        problem_set=lambda w: slice_of(experiment.problems[w.dataset]),
        disjoint=lambda w, input: [f"--disjoint {path}" for path in input.disjoint],
    shell:
        "python -m mrt.problems --name {wildcards.dataset} --set {params.problem_set:q} {params.disjoint}"
        " --out {output} > {log} 2>&1"
