"""Compatibility check of weights for `reload`: open streams must be able to continue with them."""

from pathlib import Path

from rayinfer.errors import ConfigError
from rayinfer.models.checkpoints.model_folder import MARIAN_FILES
from rayinfer.models.generation_config import default_sampling_params
from rayinfer.models.model_config import read_model_config
from rayinfer_deployments.app_args import ModelArgs
from rayinfer_deployments.model_files.nodes_with_model import resolve_on_cluster

TOKENIZER_FILES = ("tokenizer.json", *MARIAN_FILES)


def check_weights_fit(model: ModelArgs, source: str) -> None:
    """Raise ConfigError, or ModelLoadError, unless the running model can switch to the weights of `source`.

    Their tokens must be the same, as streams continue from tokens, and no sequence that fits now may be too long.
    What this node lacks is read from another, but for the weights.
    """
    old, new = (resolve_on_cluster(each, with_weights=False) for each in (model.model, source))
    tokenizer = resolve_on_cluster(model.tokenizer_source, with_weights=False)
    for name in TOKENIZER_FILES:
        if _content(tokenizer / name) != _content(new / name):
            raise ConfigError(f"{new / name} is not the tokenizer of {model.served_name!r}: deploy it as another model")
    default_sampling_params(model.engine_config(), new)
    before, after = read_model_config(old), read_model_config(new)
    if before.vocab_size != after.vocab_size:
        raise ConfigError(
            f"{new} has a vocabulary of {after.vocab_size} tokens, {model.served_name!r} has {before.vocab_size}"
        )
    longest = model.max_model_len or before.max_position_embeddings
    max_len = after.longest_sequence if model.max_model_len else after.max_position_embeddings
    if max_len < longest:
        raise ConfigError(f"{new} has a context of {max_len} tokens, {model.served_name!r} needs {longest}")


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None
