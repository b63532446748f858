"""Digest of a torch module's tensors."""

import hashlib

import torch


def module_digest(module: torch.nn.Module) -> str:
    """Return the SHA-256 of the parameters and buffers, with their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
