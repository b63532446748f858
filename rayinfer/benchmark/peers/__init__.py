"""rayinfer beside what a user would pick instead: the same work, the same cores, in turn, in one run."""
