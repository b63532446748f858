"""C++ kernels for processors: compiled on first use, called through a C interface."""
