"""Progress of jobs: checkpoints, commit records and leases."""
