# Tables and figures: each is drawn from one measure of all evaluated models.
FIGURES = {  # figure: the measure that it draws
    "maj_tokens": "maj",
    "regret": "regret",
    "scaling": "prefixes",
    "episode_counts": "episodes",
    "progress": "progress",
}


def measure_path(measure):
    return artifact("progress") if measure == "progress" else artifact("metrics", f"{measure}.parquet")


def measured(measure):
    """The measure's tables: {model: {problem set: path}}."""
    path = measure_path(measure)
    return {
        m: {d: path.format(model=m, dataset=d) for d in experiment.measured_on(m)} for m in experiment.evaluation.models
    }


def measured_files(measure):
    return [path for sets in measured(measure).values() for path in sets.values()]


def tables():
    return f"{RESULTS}/tables/pass1.md" if "accuracy" in experiment.evaluation.measures else []


def figures():
    wanted = [f for f, measure in FIGURES.items() if measure in experiment.evaluation.measures]
    return expand(f"{RESULTS}/figures/{{figure}}.png", figure=wanted)


def model_styles():
    return json.dumps({m: experiment.style(m) for m in experiment.evaluation.models})


rule draw_figure:
    input:
        lambda w: measured_files(FIGURES[w.figure]),
    output:
        pdf=f"{RESULTS}/figures/{{figure}}.pdf",
        png=report(
            f"{RESULTS}/figures/{{figure}}.png",
            caption="../report/{figure}.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
        data=f"{RESULTS}/figures/{{figure}}.parquet",
    params:
        tables=lambda w: json.dumps(measured(FIGURES[w.figure])),
        models=lambda w: model_styles(),
        out=subpath(output.png, strip_suffix=".png"),
    log:
        log_of("draw_figure", "figure"),
    wildcard_constraints:
        figure=any_of(FIGURES),
    conda:
        ANALYSIS
    shell:
        "python -m mrt.figures.{wildcards.figure} --tables {params.tables:q} --models {params.models:q}"
        " --out {params.out} > {log} 2>&1"


rule pass1_table:
    input:
        measured_files("accuracy"),
    output:
        markdown=report(
            f"{RESULTS}/tables/pass1.md", caption="../report/pass1.rst", category="Tables", labels={"table": "pass@1"}
        ),
        latex=f"{RESULTS}/tables/pass1.tex",
        data=f"{RESULTS}/tables/pass1.parquet",
    params:
        tables=lambda w: json.dumps(measured("accuracy")),
        models=lambda w: model_styles(),
        out=subpath(output.markdown, strip_suffix=".md"),
    log:
        log_of("pass1_table"),
    conda:
        ANALYSIS
    shell:
        "python -m mrt.figures.pass1 --tables {params.tables:q} --models {params.models:q} --out {params.out} > {log} 2>&1"
