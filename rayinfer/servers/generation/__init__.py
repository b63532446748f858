"""Generation for every protocol: prompts to token ids, requests to outputs, and responses that own their generation."""
