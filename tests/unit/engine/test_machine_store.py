import pytest
import torch

from rayinfer.config import engine_config
from rayinfer.engine.machine_store import check_store_settings
from rayinfer.errors import ConfigError
from rayinfer.llm import LLM
from rayinfer.models.model_config import read_model_config
from support.golden.encoder_decoder_runs import make_tiny_t5
from support.tiny_models.tiny_checkpoints import make_tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize(
    ("device", "settings", "message"),
    [
        ("cpu", {"engine": "static"}, "needs engine 'dynamic'"),
        ("cpu", {"tensor_parallel_size": 2}, "one rank, this one has 2"),
        ("cuda", {}, "on a CPU so far, this one runs on cuda"),
    ],
)
def test_engines_without_a_store_refuse_its_setting(device, settings, message, folder):
    model, device = read_model_config(folder), torch.device(device)
    with pytest.raises(ConfigError, match=message):
        check_store_settings(engine_config(kv_store_gib=1, **settings), model, device)
    check_store_settings(engine_config(**settings), model, device)


def test_encoder_decoders_refuse_it(tmp_path):
    make_tiny_t5(tmp_path)
    with pytest.raises(ConfigError, match="kv_store_gib is for decoders"):
        check_store_settings(engine_config(kv_store_gib=1), read_model_config(tmp_path), torch.device("cpu"))


@pytest.mark.parametrize(("gib", "message"), [(1e-7, "hold no block"), (1e6, "is more than the")])
def test_sizes_that_cannot_be_are_refused(gib, message, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYINFER_SHARED_MEMORY", str(tmp_path))
    with pytest.raises(ConfigError, match=message):
        LLM(str(folder), num_kv_blocks=8, kv_store_gib=gib)


def test_folders_of_others_and_files_in_their_place_are_refused(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RAYINFER_SHARED_MEMORY", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot be opened"):
        LLM(str(folder), num_kv_blocks=8, kv_store_gib=0.01)
