# The page of traces: episodes, progress and answers, to look at in a browser.


rule traces:
    input:
        tables=traces_page.tables(),
    output:
        page=f"{paths.results}/traces.html",
        excerpt=report(
            f"{paths.results}/traces_in_report.html",
            caption="../report/traces.rst",
            category="3 Episodes and progress (Sections 5, 6)",
            labels={"what": "traces", "paper": "", "form": "page"},
        ),
    log:
        paths.log("traces"),
    conda:
        ANALYSIS
    resources:
        mem_mb=lambda w, attempt: 8000 * attempt,  # the traces of all models on a dataset
    params:
        code=options.code("traces.page"),
        assets=traces_page.assets(),
        content=traces_page.content(),
        settings=traces_page.settings(),
        results=lambda w: paths.results,
        execution=files_of("tables"),
    shell:
        "python -m mrt.traces.page {params.results:q} --settings {params.settings:q}"
        " --execution {params.execution:q} --out {output.page:q} --excerpt {output.excerpt:q} > {log:q} 2>&1"
