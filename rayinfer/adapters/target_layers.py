"""Layers of a model that adapters may change, by the names that checkpoints and PEFT have for them."""

from dataclasses import dataclass

from rayinfer.errors import ConfigError
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.decoder import Decoder


@dataclass(frozen=True, slots=True)
class TargetLayer:
    """A linear layer of the checkpoint: all or some outputs of one of the model."""

    path: str  # of the model's layer
    outputs: range
    in_features: int
    is_transposed: bool  # in the checkpoint, [in_features, outputs]


class TargetLayers:
    """The layers of a whole decoder on the meta device; raises ConfigError for one that has none."""

    def __init__(self, decoder: Decoder) -> None:
        if not isinstance(decoder, CausalDecoder):
            raise ConfigError(f"enable_lora must not be true for {type(decoder).__name__}, which takes no adapters")
        self._decoder = decoder
        layers = decoder.adapted_layers()
        self.by_name: dict[str, TargetLayer] = {}
        for name, part in decoder.checkpoint_slices().items():
            path, _, kind = part.parameter.rpartition(".")
            if kind != "weight" or path not in layers:
                continue
            assert part.index is None or isinstance(part.index, slice), f"{name} is one of {part.parameter}'s rows"
            num_outputs, in_features = layers[path].weight.shape
            outputs = range(num_outputs) if part.index is None else range(num_outputs)[part.index]
            self.by_name[name.removesuffix(".weight")] = TargetLayer(path, outputs, in_features, part.is_transposed)

    def find(self, name: str) -> str | None:
        """Return a layer's name in `by_name`, where adapters of this family of checkpoints may have another."""
        known = self._decoder.known_name(f"{name}.weight")
        known = None if known is None else known.removesuffix(".weight")
        return known if known in self.by_name else None
