"""Clients of a running service, over HTTP; without torch."""

from rayinfer.client.async_client import AsyncInferenceClient as AsyncInferenceClient
from rayinfer.client.inference_client import InferenceClient as InferenceClient
