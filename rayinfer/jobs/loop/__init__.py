"""Loop of a job: rows through a bounded window, outputs in input order, checkpoints."""
