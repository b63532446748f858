"""OpenAI's HTTP protocol: models, completions and chat completions."""
