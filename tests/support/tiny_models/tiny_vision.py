"""A tiny random Idefics3 or SmolVLM with all its files, and transformers' answers to images."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    PreTrainedTokenizerFast,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

from rayinfer.images.headers import ImageSize
from support.tiny_models.tiny_checkpoints import save_tokenizer
from support.tiny_models.tiny_images import picture

TILE, LONGEST_EDGE, TOKENS_PER_TILE = 24, 72, 9
VOCAB_SIZE = 424
MARKERS = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>")
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}:"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>{% else %} {{ part['text'] }}"
    "{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
FAMILIES = {
    "idefics3": (Idefics3Config, Idefics3ForConditionalGeneration),
    "smolvlm": (SmolVLMConfig, SmolVLMForConditionalGeneration),
}


def make_tiny_vision_model(folder: Path, *, family: str = "idefics3", splits: bool = True, tie: bool = False) -> Path:
    """Save a random model of 24-pixel tiles, 9 tokens each, and images of up to 3 x 3 tiles; returns the folder."""
    config_class, model_class = FAMILIES[family]
    text = {
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "pad_token_id": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.15,
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": TILE,
        "patch_size": 4,
        "initializer_range": 0.15,
    }
    save_tokenizer(folder, VOCAB_SIZE - 24, 1024)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([*MARKERS, *(f"<row_{row}_col_{column}>" for row in "123" for column in "123")])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = config_class(
        text_config=text,
        vision_config=vision,
        scale_factor=2,
        image_token_id=tokenizer.token_to_id("<image>"),
        tie_word_embeddings=tie,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(config).float()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:
                    parameter += 0.3 * torch.randn(parameter.shape)
                elif "connector" in name or "patch_embedding" in name:  # so that images matter
                    parameter.copy_(0.3 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    image_processor(splits=splits).save_pretrained(folder)
    return folder


def image_processor(*, splits: bool = True) -> Idefics3ImageProcessorPil:
    """Return transformers' image processor of the model."""
    return Idefics3ImageProcessorPil(
        size={"longest_edge": LONGEST_EDGE},
        max_image_size={"longest_edge": TILE},
        do_image_splitting=splits,
        return_row_col_info=True,
    )


def picture_of(width: int, height: int, shift: int = 0) -> Image.Image:
    """Return a picture of this size; another `shift` makes another picture."""
    pixels = picture(height, width)
    return Image.fromarray((pixels.astype(int) * (1 + shift) + 40 * shift).astype("uint8"))


def encoded(image: Image.Image, kind: str = "PNG", **settings: object) -> bytes:
    """Encode a picture."""
    out = io.BytesIO()
    image.save(out, kind, **settings)
    return out.getvalue()


def size_of(image: Image.Image) -> ImageSize:
    """Return a picture's size."""
    return ImageSize(image.width, image.height)


@dataclass(frozen=True)
class TheirInputs:
    """A prompt as transformers' processor makes it."""

    token_ids: list[int]
    pixel_values: torch.Tensor | None
    pixel_attention_mask: torch.Tensor | None


class TransformersVision:
    """The model and the processor of transformers."""

    def __init__(self, folder: Path, *, family: str = "idefics3", splits: bool = True) -> None:
        _, model_class = FAMILIES[family]
        self.model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        self._processor = Idefics3Processor(image_processor(splits=splits), tokenizer, image_seq_len=TOKENS_PER_TILE)

    def inputs(self, text: str, images: Sequence[Image.Image]) -> TheirInputs:
        """Process a text with the marker for each image."""
        if not images:
            return TheirInputs(self._processor.tokenizer(text, add_special_tokens=False)["input_ids"], None, None)
        made = self._processor(
            text=[text], images=[list(images)], return_tensors="pt", text_kwargs={"add_special_tokens": False}
        )
        return TheirInputs(made["input_ids"][0].tolist(), made["pixel_values"], made["pixel_attention_mask"])

    @torch.inference_mode()
    def logits(self, inputs: TheirInputs, output_token_ids: Sequence[int] = ()) -> torch.Tensor:
        """The logits of every position of prompt and output, [num_tokens, vocab_size]."""
        token_ids = torch.tensor([[*inputs.token_ids, *output_token_ids]])
        if inputs.pixel_values is None:
            return self.model(token_ids).logits[0]
        pixels, mask = inputs.pixel_values, inputs.pixel_attention_mask
        return self.model(token_ids, pixel_values=pixels, pixel_attention_mask=mask).logits[0]

    @torch.inference_mode()
    def embeddings(self, inputs: TheirInputs) -> torch.Tensor:
        """The embeddings of all images, [num_tokens, hidden_size]."""
        features = self.model.get_image_features(inputs.pixel_values, inputs.pixel_attention_mask, return_dict=True)
        return torch.cat(list(features.pooler_output))
