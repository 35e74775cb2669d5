"""Renderers of one Diagnosis: a terminal page and versioned JSON."""
