"""Native histograms in their text form, as the classic `_bucket`, `_sum` and `_count` series that mean the same.

    {count:24,sum:100,schema:0,zero_threshold:0.001,zero_count:4,positive_spans:[0:2,1:2],positive_deltas:[2,1,-3,3]}

Bucket i of schema s ends at 2**(i * 2**-s). Spans say which buckets are there (offset from the end of the span before, length),
deltas by how much each count differs from the one before it. Negative observations are no durations: they count at bound 0.
"""

import re
from collections.abc import Iterator

_SCALAR = re.compile(r"(\w+):([-+.\w]+)(?=[,}])")
_LIST = re.compile(r"(\w+):\[([^\]]*)\]")
_MAX_BUCKETS = 10_000
_MAX_EXPONENT = 1_000


def is_native(rest: str) -> bool:
    """Whether what follows a series is a native histogram and not a number."""
    return rest.lstrip()[:1] == "{"


def expand(text: str) -> Iterator[tuple[str, str, float]]:
    """(suffix, le or nothing, value). Raises ValueError when it is no such histogram."""
    lists = {name: [item for item in items.split(",") if item.strip()] for name, items in _LIST.findall(text)}
    scalars = dict(_SCALAR.findall(_LIST.sub("", text)))
    try:
        count, total, schema = float(scalars["count"]), float(scalars["sum"]), int(scalars["schema"])
        below = float(scalars.get("zero_count", 0)) + sum(
            amount for _, amount in _buckets(lists.get("negative_spans", []), lists.get("negative_deltas", []))
        )
        positive = list(_buckets(lists.get("positive_spans", []), lists.get("positive_deltas", [])))
        threshold = float(scalars.get("zero_threshold", 0))
    except KeyError as missing:
        raise ValueError(f"a native histogram without {missing}") from None
    yield "_count", "", count
    yield "_sum", "", total
    yield "_bucket", _bound(threshold), below
    for index, amount in positive:
        below += amount
        exponent = index * 2.0**-schema
        if abs(exponent) > _MAX_EXPONENT:
            raise ValueError("a native histogram whose buckets are beyond all numbers")
        yield "_bucket", _bound(2.0**exponent), below
    yield "_bucket", "+Inf", count


def _buckets(spans: list[str], deltas: list[str]) -> Iterator[tuple[int, float]]:
    """(bucket index, its count)."""
    index, amount, at = 0, 0.0, 0
    for span in spans:
        offset, _, length = span.partition(":")
        index += int(offset)
        if int(length) < 0 or at + int(length) > min(len(deltas), _MAX_BUCKETS):
            raise ValueError("spans and deltas of a native histogram do not fit together")
        for _ in range(int(length)):
            amount += float(deltas[at])
            yield index, amount
            index, at = index + 1, at + 1


def _bound(value: float) -> str:
    return f"{value:.17g}"
