"""Offline jobs: a model over the rows of a data set, resumable, with every row in the output exactly once."""
