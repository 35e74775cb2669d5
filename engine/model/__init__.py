"""The decoder, its weights and where they come from. torch is imported here and in `engine.runner`, nowhere else."""
