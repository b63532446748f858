"""`LLM`: the engine for scripts and notebooks, without Ray and without a server."""

from rayinfer.llm.llm import LLM as LLM
