# Training: a child model from its parent and its set; and the toy base from nothing.
rule train:
    input:
        checkpoint=parent_checkpoint,
        examples=f"{RESULTS}/sets/{{model}}.parquet",
    output:
        checkpoint=directory(f"{RESULTS}/models/{{model}}"),
        log=f"{RESULTS}/models/{{model}}.log.parquet",
    log:
        log_of("train", "model"),
    wildcard_constraints:
        model=any_of(TRAINED),
    conda:
        TRAINING
    threads: experiment.training_threads
    params:
        parent=parent_name,
        recipe=lambda w: slice_of(experiment.models[w.model].recipe or experiment.training.recipe),
        state=f"{RESULTS}/.state/{{model}}",
    shell:
        "OMP_NUM_THREADS={threads} python -m mrt.train.sft --model {params.parent} --set {input.examples}"
        " --recipe {params.recipe:q} --state {params.state} --log {output.log} --out {output.checkpoint} > {log} 2>&1"


rule toy_base:
    output:
        checkpoint=directory(f"{RESULTS}/models/toy_base"),
        log=f"{RESULTS}/models/toy_base.log.parquet",
    log:
        log_of("toy_base"),
    conda:
        TRAINING
    threads: 2
    params:
        state=f"{RESULTS}/.state/toy_base",
        seed=experiment.seed,
    shell:
        "OMP_NUM_THREADS={threads} python -m mrt.toy.base --seed {params.seed} --state {params.state}"
        " --log {output.log} --out {output.checkpoint} > {log} 2>&1"
