"""Workers of jobs in other processes: Ray actors, and stages of a pipeline."""
