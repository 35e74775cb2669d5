"""Attention backends of device runners: which ones there are, which one is used and why."""
