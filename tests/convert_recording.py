"""Rewrites recordings of schema 1 (a JSON line per answer) in place: `python -m tests.convert_recording FILE...`.

Schema 1 was never released; what was recorded with it for the tests is kept this way.
"""

import json
import sys
from pathlib import Path

from probes.recording import Entry, RecordingWriter


def convert(path: Path) -> tuple[int, int]:
    """Size before and after."""
    before = path.stat().st_size
    header, *lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    if header.get("stallscope_recording") != 1:
        raise ValueError(f"{path}: not a recording of schema 1")
    with RecordingWriter(path, header["target"], header["started_unix"], existing="replace") as writer:
        for line in lines:
            writer.write(Entry(line["t"], line["kind"], line["body"], line.get("event")))
    return before, path.stat().st_size


if __name__ == "__main__":
    for name in sys.argv[1:]:
        before, after = convert(Path(name))
        print(f"{name}: {before} -> {after} bytes")
