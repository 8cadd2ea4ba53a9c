# Problem sets: one schema, whatever they come from.
def problem_file(wildcards):
    file = experiment.problems[wildcards.dataset].file
    return [str(file)] if file else []


rule problem_set:
    input:
        file=problem_file,
        disjoint=lambda w: [f"{RESULTS}/problems/{d}.parquet" for d in experiment.problems[w.dataset].disjoint_from],
    output:
        f"{RESULTS}/problems/{{dataset}}.parquet",
    params:
        problem_set=lambda w: slice_of(experiment.problems[w.dataset]),
        disjoint=lambda w, input: [f"--disjoint {path}" for path in input.disjoint],
    log:
        log_of("problem_set", "dataset"),
    conda:
        ANALYSIS
    localrule: True
    shell:
        "python -m mrt.problems --name {wildcards.dataset} --set {params.problem_set:q} {params.disjoint}"
        " --out {output} > {log} 2>&1"
