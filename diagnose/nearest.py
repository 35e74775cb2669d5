"""What somebody may have meant who wrote a name that does not exist."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean X?)`, to go behind the name; empty when nothing resembles it."""
    names = list(known)
    begun = [candidate for candidate in names if candidate.startswith(name)]
    close = begun[:1] or get_close_matches(name, names, 1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""
