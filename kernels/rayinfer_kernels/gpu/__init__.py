"""Triton kernels for NVIDIA GPUs, each with the signature of its reference where there is one."""
