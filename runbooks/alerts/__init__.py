"""Prometheus rules for the engines we know, made from their metric names."""
