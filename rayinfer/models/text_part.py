"""Names of the language model's tensors in a checkpoint that reads images, too."""

# The language model is behind one of these names, the rest beside it.
_LANGUAGE_MODEL = {"model.language_model.": "model.", "language_model.": ""}
_IMAGE_PARTS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


def name_in_language_model(tensor_name: str) -> str | None:
    """Return a tensor's name in the language model alone; None for one of the other parts."""
    if tensor_name.startswith(_IMAGE_PARTS):
        return None
    for prefix, ours in _LANGUAGE_MODEL.items():
        if tensor_name.startswith(prefix):
            return ours + tensor_name.removeprefix(prefix)
    return tensor_name
