"""The engines that `tests.benchmarks.cpu_engines` compares, one module each, run under its own interpreter."""
