"""A tiny random Qwen2-VL or Qwen2.5-VL with all its files, and transformers' answers to images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from support.tiny_models.tiny_checkpoints import save_tokenizer

PATCH, MERGE = 4, 2
MIN_PIXELS, MAX_PIXELS = 16 * 16, 48 * 48  # 4 to 36 embeddings
VOCAB_SIZE = 424
MARKERS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for content in message['content'] %}{% if content['type'] == 'image' %}"
    + IMAGE
    + "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FAMILIES = {
    "qwen2_vl": (Qwen2VLConfig, Qwen2VLForConditionalGeneration),
    "qwen2_5_vl": (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration),
}


def make_tiny_qwen_vision_model(folder: Path, *, family: str = "qwen2_5_vl", tie: bool = False) -> Path:
    """Save a random model of 8-pixel squares and windows of 2 x 2 of these; returns the folder."""
    config_class, model_class = FAMILIES[family]
    text = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.15,
    }
    vision = {
        "depth": 3,
        "num_heads": 2,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "initializer_range": 0.15,
    }
    if family == "qwen2_vl":
        vision |= {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}
    else:
        vision |= {"hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "window_size": 16}
        vision["fullatt_block_indexes"] = [1]
    save_tokenizer(folder, VOCAB_SIZE - 24, 1024)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(list(MARKERS))
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {f"{kind}_token_id": tokenizer.token_to_id(f"<|{kind}_pad|>") for kind in ("image", "video")}
    ids |= {f"vision_{side}_token_id": tokenizer.token_to_id(f"<|vision_{side}|>") for side in ("start", "end")}
    config = config_class(text_config=text, vision_config=vision, tie_word_embeddings=tie, **ids)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(config).float()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:
                    parameter += 0.3 * torch.randn(parameter.shape)
                elif "merger" in name or "patch_embed" in name:  # so that images matter
                    parameter.copy_(0.2 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    image_processor().save_pretrained(folder)
    return folder


def image_processor() -> Qwen2VLImageProcessorPil:
    """Return transformers' image processor of the model."""
    size = {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS}
    return Qwen2VLImageProcessorPil(size=size, patch_size=PATCH, merge_size=MERGE)


@dataclass(frozen=True)
class TheirInputs:
    """A prompt as transformers' processor makes it."""

    token_ids: list[int]
    pixel_values: torch.Tensor | None
    grids: torch.Tensor | None


class TransformersQwenVision:
    """The model and the processor of transformers."""

    def __init__(self, folder: Path, *, family: str = "qwen2_5_vl") -> None:
        _, model_class = FAMILIES[family]
        self.model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        self._image_token_id = self.model.config.image_token_id

    def inputs(self, text: str, images: Sequence[Image.Image]) -> TheirInputs:
        """Process a text with the marker for each image."""
        if not images:
            return TheirInputs(self._tokenizer(text, add_special_tokens=False)["input_ids"], None, None)
        made = image_processor()(images=list(images), return_tensors="pt")
        pieces = text.split("<|image_pad|>")
        for index, grid in enumerate(made["image_grid_thw"]):
            pieces[index] += "<|image_pad|>" * (int(grid.prod()) // MERGE**2)
        token_ids = self._tokenizer("".join(pieces), add_special_tokens=False)["input_ids"]
        return TheirInputs(token_ids, made["pixel_values"], made["image_grid_thw"])

    @torch.inference_mode()
    def logits(self, inputs: TheirInputs, output_token_ids: Sequence[int] = ()) -> torch.Tensor:
        """The logits of every position of prompt and output, [num_tokens, vocab_size]."""
        token_ids = torch.tensor([[*inputs.token_ids, *output_token_ids]])
        if inputs.pixel_values is None:
            return self.model(token_ids).logits[0]
        kinds = (token_ids == self._image_token_id).int()
        return self.model(
            token_ids, pixel_values=inputs.pixel_values, image_grid_thw=inputs.grids, mm_token_type_ids=kinds
        ).logits[0]

    @torch.inference_mode()
    def positions(self, inputs: TheirInputs) -> torch.Tensor:
        """Time, height and width of every token, [3, num_tokens]."""
        token_ids = torch.tensor([inputs.token_ids])
        kinds = (token_ids == self._image_token_id).int()
        return self.model.model.get_rope_index(token_ids, kinds, image_grid_thw=inputs.grids)[0][:, 0]

    @torch.inference_mode()
    def embeddings(self, inputs: TheirInputs) -> torch.Tensor:
        """The embeddings of all images, [num_tokens, hidden_size]."""
        features = self.model.get_image_features(inputs.pixel_values, inputs.grids, return_dict=True)
        return torch.cat(list(features.pooler_output))
