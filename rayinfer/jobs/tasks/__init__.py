"""Tasks of jobs: generation and predictions on our engines, and forward passes of torch modules."""
