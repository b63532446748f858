"""Reports of `rayinfer doctor --model` on checkpoints that were quantized by others."""

from rayinfer.config import engine_config
from rayinfer_deployments.cli.doctor.model_checks.checked_model import Expectations, open_model
from rayinfer_deployments.cli.doctor.model_checks.checklist import CHECKS
from support.tiny_models.published_cases import FORMATS
from support.tiny_models.published_formats import make_published_llama


def report_on(folder):
    config = engine_config(model=str(folder), dtype="bfloat16", num_kv_blocks=32, num_threads=1)
    with open_model(config, Expectations()) as model:
        return CHECKS["quantization"](model)


def test_the_format_and_the_error_of_its_conversion_are_reported(tmp_path):
    folder = make_published_llama(tmp_path, FORMATS["gptq"])
    found = report_on(folder)
    assert found.verdict == "pass"
    assert "gptq, 4 bits, groups of 32: 14 matrices; as bfloat16 they have a relative error of" in found.reason
    assert report_on(folder / "plain").reason == "none: weights are those of the checkpoint"
