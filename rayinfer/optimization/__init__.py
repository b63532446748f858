"""What is done to a loaded model before it runs: fewer bits for its weights, and a place where the result is kept."""
