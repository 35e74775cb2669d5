"""Checks that need an NVIDIA GPU: `make gpu-check`. Nothing here is collected by pytest."""
