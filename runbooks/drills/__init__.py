"""Induced, labelled conditions on a live engine process, to see the diagnosis come out right."""
