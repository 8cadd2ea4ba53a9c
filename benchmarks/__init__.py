"""How fast each part is, against the obvious way and against the machine's limit: `python -m benchmarks`."""
