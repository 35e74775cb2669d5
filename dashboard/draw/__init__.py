"""Shapes made of text: lines of styled spans, charts, bars, tables. Roles name meanings; themes give them colours."""
