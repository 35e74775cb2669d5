"""Secrets in files: read without what surrounds them, and never shown."""

import pytest

from diagnose.errors import SourceError
from diagnose.secret_files import read_secret, read_token


def test_white_space_around_a_secret_is_no_part_of_it(tmp_path):
    path = tmp_path / "s"
    path.write_text("\n user:pässword with spaces \n")
    assert read_secret(path) == "user:pässword with spaces"
    path.write_text("tok.en-1\n")
    assert read_token(path) == "tok.en-1"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xffhush", "is not text"),
        (b"hush hush", "must hold one word"),
        ("hüsh".encode(), "must hold one word"),
        (b"hush\x07", "must hold one word"),
    ],
)
def test_what_is_no_token_is_refused_and_not_shown(tmp_path, content, said):
    path = tmp_path / "s"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SourceError) as refused:
        read_token(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert said in str(refused.value)
    assert "hush" not in str(refused.value)
