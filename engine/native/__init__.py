"""Compiled kernels for the CPU: built by `pip install` where there is a C++ compiler, done without where there is none."""
