"""Language models: their sources, the loading of checkpoints, and one file per architecture."""
