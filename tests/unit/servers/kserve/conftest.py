import pytest
from fastapi import FastAPI

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import ServedModel, build_app
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.kserve.example_models import example_models
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.kserve.repository import ModelRepository

MAX_BODY_BYTES = 200_000


@pytest.fixture
def kserve(models: dict[str, ServedModel]) -> InferenceService:
    return InferenceService(GenerationService(models, None, None), ModelRepository(models, example_models()))


@pytest.fixture
def app(models: dict[str, ServedModel], metrics: ServiceMetrics, kserve: InferenceService) -> FastAPI:
    """The fake language model org/tiny beside the example models."""
    return build_app(models, metrics, max_body_bytes=MAX_BODY_BYTES, kserve=kserve)
