"""The terminal dashboard. It has no screens yet: the room holds its place in the layering."""
