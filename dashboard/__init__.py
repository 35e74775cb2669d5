"""The terminal dashboard. `model`, `draw` and `panels` are pure (no Textual, no network); the rest puts them on screen."""
