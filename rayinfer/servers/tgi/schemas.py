"""TGI's request bodies: types only; ranges are checked where each value is used."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from rayinfer.servers.openai.schemas import Texts


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())


class GenerateParameters(_Strict):
    """TGI's `parameters`; null means the default everywhere."""

    best_of: int | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    do_sample: bool | None = None
    max_new_tokens: int | None = None
    return_full_text: bool | None = None
    stop: Texts | None = None
    truncate: int | None = None
    watermark: bool | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    seed: int | None = None
    top_n_tokens: int | None = None
    grammar: dict[str, Any] | None = None
    adapter_id: str | None = None


class GenerateBody(_Strict):
    """POST /generate, /generate_stream, /tokenize and, with `stream`, / and /invocations."""

    inputs: str
    parameters: GenerateParameters | None = None
    stream: bool | None = None
    add_special_tokens: bool | None = None
