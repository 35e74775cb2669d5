"""Where evidence comes from: live servers and files. Every source ends in the same list of recording entries."""
