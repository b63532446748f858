"""A model's tokenizer, as grammars need it."""

from pathlib import Path

from rayinfer.errors import InvalidParameter, ModelLoadError
from rayinfer.grammars.compiler import TokenizerFile
from rayinfer.tokenization.tokenizer import Tokenizer


def read_tokenizer_file(folder: Path) -> TokenizerFile:
    """Read the tokenizer of a model's folder; raises InvalidParameter where it has no tokenizer.json."""
    try:
        tokenizer = Tokenizer.from_folder(folder)
    except ModelLoadError as error:
        raise InvalidParameter(
            f"structured_outputs needs the model's tokenizer: {error}", "structured_outputs"
        ) from None
    contents = tokenizer.backend_json()
    if contents is None:
        raise InvalidParameter("structured_outputs is not possible with this model's tokenizer", "structured_outputs")
    return TokenizerFile(contents, tokenizer.special_texts)
