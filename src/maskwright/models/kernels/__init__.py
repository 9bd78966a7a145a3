"""Kernels of our own for GPUs, in Triton, each with a plain reference beside it; imported only where they run."""
