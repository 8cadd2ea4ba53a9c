# Tables and figures, each a target of its own name and of its numbers in the paper (`snakemake fig9`).
for name, drawn in DRAWN.items():
    if drawn.table:

        rule:
            name:
                name
            input:
                lambda w, name=name: drawn_files(name),
            output:
                markdown=f"{RESULTS}/tables/{name}.md",
                page=report(
                    f"{RESULTS}/tables/{name}.html",
                    caption=f"../report/{name}.rst",
                    category=drawn.section,
                    labels=labels(name, "table"),
                ),
                latex=f"{RESULTS}/tables/{name}.tex",
                data=f"{RESULTS}/tables/{name}.parquet",
                csv=report(
                    f"{RESULTS}/tables/{name}.csv",
                    caption=f"../report/{name}.rst",
                    category=drawn.section,
                    labels=labels(name, "values (CSV)"),
                ),
            log:
                log_of(name),
            conda:
                ANALYSIS
            params:
                code=code_of(f"figures.{name}"),
                name=name,
                tables=lambda w, name=name: json.dumps(drawn_tables(name)),
                models=lambda w, name=name: drawn_models(name),
                out=subpath(output.markdown, strip_suffix=".md"),
            shell:
                "python -m mrt.figures.{params.name} --tables {params.tables:q} --models {params.models:q}"
                " --out {params.out:q} > {log:q} 2>&1"

    else:

        rule:
            name:
                name
            input:
                lambda w, name=name: drawn_files(name),
            output:
                pdf=f"{RESULTS}/figures/{name}.pdf",
                png=report(
                    f"{RESULTS}/figures/{name}.png",
                    caption=f"../report/{name}.rst",
                    category=drawn.section,
                    labels=labels(name, "figure"),
                ),
                data=f"{RESULTS}/figures/{name}.parquet",
                csv=report(
                    f"{RESULTS}/figures/{name}.csv",
                    caption=f"../report/{name}.rst",
                    category=drawn.section,
                    labels=labels(name, "values (CSV)"),
                ),
            log:
                log_of(name),
            conda:
                ANALYSIS
            params:
                code=code_of(f"figures.{name}"),
                name=name,
                tables=lambda w, name=name: json.dumps(drawn_tables(name)),
                models=lambda w, name=name: drawn_models(name),
                out=subpath(output.png, strip_suffix=".png"),
            shell:
                "python -m mrt.figures.{params.name} --tables {params.tables:q} --models {params.models:q}"
                " --out {params.out:q} > {log:q} 2>&1"

    for number in drawn.numbers:

        rule:
            name:
                number
            input:
                drawn_as(name),


# What made the results, and the configuration.
rule provenance:
    input:
        provenance_files().values(),
    output:
        markdown=f"{RESULTS}/tables/provenance.md",
        page=report(
            f"{RESULTS}/tables/provenance.html",
            caption="../report/provenance.rst",
            category="5 Provenance",
            labels={"what": "provenance", "paper": "", "form": "table"},
        ),
        data=f"{RESULTS}/tables/provenance.parquet",
    log:
        log_of("provenance"),
    localrule: True
    conda:
        ANALYSIS
    params:
        code=code_of("figures.provenance"),
        files=lambda w: json.dumps(provenance_files()),
        config=lambda w: slice_of(experiment),
        out=subpath(output.markdown, strip_suffix=".md"),
    shell:
        "python -m mrt.figures.provenance --files {params.files:q} --config {params.config:q} --out {params.out:q} > {log:q} 2>&1"
