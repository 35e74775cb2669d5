"""The difference of two texts whose lines mostly repeat, as successive pages of /metrics do.

One operation a line, applied to the old text's lines under a cursor that starts at the first of them:

    =N      the next N lines are the old ones
    ~TEXT   the old line, with TEXT after its last space
    +TEXT   a line of its own; the cursor stays
    @N      the cursor moves to old line N (counted from 0)
"""


def encode_delta(old: str, new: str) -> str:
    """What `apply_delta(old, ...)` makes `new` of. Linear in the number of lines."""
    before, ops = old.split("\n"), []
    places: dict[str, int] | None = None
    cursor = same = 0
    for line in new.split("\n"):
        if cursor < len(before) and before[cursor] == line:
            cursor += 1
            same += 1
            continue
        if same:
            ops.append(f"={same}")
            same = 0
        key, space, value = line.rpartition(" ")
        if not (cursor < len(before) and _key(before[cursor]) == key and space):
            if places is None:
                places = {_key(text): place for place, text in enumerate(before) if " " in text}
            place = places.get(key) if space else None
            if place is None:
                ops.append(f"+{line}")
                continue
            ops.append(f"@{place}")
            cursor = place
        ops.append(f"~{value}")
        cursor += 1
    if same:
        ops.append(f"={same}")
    return "\n".join(ops)


def apply_delta(old: str, delta: str) -> str:
    """Raises ValueError when `delta` does not fit `old`."""
    before, lines = old.split("\n"), []
    cursor = 0
    for op in delta.split("\n"):
        code, text = op[:1], op[1:]
        if code == "=":
            count = int(text)
            if not 0 < count <= len(before) - cursor:
                raise ValueError(f"{op!r} goes beyond the old text's end")
            lines += before[cursor : cursor + count]
            cursor += count
        elif code == "~":
            if cursor >= len(before):
                raise ValueError("a changed line beyond the old text's end")
            lines.append(f"{_key(before[cursor])} {text}")
            cursor += 1
        elif code == "+":
            lines.append(text)
        elif code == "@":
            cursor = int(text)
            if not 0 <= cursor < len(before):
                raise ValueError(f"{op!r} is outside of the old text")
        else:
            raise ValueError(f"unknown operation {code!r}")
    return "\n".join(lines)


def _key(line: str) -> str:
    return line.rpartition(" ")[0]
