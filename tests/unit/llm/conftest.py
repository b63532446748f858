from pathlib import Path

import pytest

from support.tiny_models.tiny_checkpoints import make_tiny_llama


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of 384 tokens and a context of 512."""
    return make_tiny_llama(tmp_path_factory.mktemp("llama"), tie=False)
