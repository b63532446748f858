"""Paths of models that do not generate, as OpenAI, vLLM, Jina and Cohere have them."""
