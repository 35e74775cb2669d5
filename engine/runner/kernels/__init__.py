"""Triton kernels over paged KV. Importing a module of this package imports triton; nothing else in the engine does."""
