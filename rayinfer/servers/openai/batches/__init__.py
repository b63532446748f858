"""OpenAI's Files and Batches APIs, and the runner of batches' rows in a router."""
