"""Language models: where they come from, how their checkpoints are read, and one file per architecture."""
