"""Controlled comparisons: two arms, one difference, paired blocks under the same load."""
