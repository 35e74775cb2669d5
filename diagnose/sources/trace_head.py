"""How a trace is recognised by its first bytes, without what reading it needs."""

import re
import zlib

HEAD_BYTES = 64 << 10
GZIP = b"\x1f\x8b"
EVENTS_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_PROFILER_FIELDS = (b'"baseTimeNanoseconds"', b'"deviceProperties"')
_BARE_ARRAY = re.compile(rb'\[\s*\{[^{}]*"ph"\s*:')


def is_trace(head: bytes) -> bool:
    """Whether a file that begins with `head` is a Chrome trace. A gzip one is unpacked as far as `head` goes."""
    if head.startswith(GZIP):
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
        except zlib.error:
            return False
    text = head.lstrip()
    if text.startswith(b"{"):
        return EVENTS_ARRAY.search(text) is not None or any(name in text for name in _PROFILER_FIELDS)
    return _BARE_ARRAY.match(text) is not None
