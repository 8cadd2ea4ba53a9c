"""One page to look at traces in a browser: see `mrt.traces.page`."""
