"""The toy world: a small reasoning model with the flaws that the paper studies; the whole paper runs on a laptop."""
