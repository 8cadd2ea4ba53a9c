"""What the rules are made of, beside Snakemake's own language: paths, options, resources, figures, running."""
