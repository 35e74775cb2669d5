"""The process around the engine: HTTP surface, admin verbs, options and the `serve` command."""
