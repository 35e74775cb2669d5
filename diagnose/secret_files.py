"""Secrets that stand in files, since an argument is shown in lists of processes. No error ever shows what a file holds."""

from pathlib import Path

from diagnose.errors import SourceError


def read_secret(path: Path) -> str:
    """The file's text without surrounding white space. Raises SourceError when there is none."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or type(error).__name__}") from None
    except UnicodeDecodeError:
        raise SourceError(f"{path}: is not text") from None
    if not text:
        raise SourceError(f"{path}: is empty")
    return text


def read_token(path: Path) -> str:
    """A secret that a header can carry: one word of printable ASCII. Raises SourceError."""
    token = read_secret(path)
    if not token.isascii() or not token.isprintable() or len(token.split()) != 1:
        raise SourceError(f"{path}: must hold one word of printable ASCII, the token")
    return token
