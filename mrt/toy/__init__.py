"""The toy world: a small reasoning model that has the paper's vices, so that the whole paper runs on a laptop."""
