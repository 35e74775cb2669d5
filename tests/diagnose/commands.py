"""What tests of the command share: recordings made to measure, and complaints of one line."""

from pathlib import Path

from probes.recording import Entry, RecordingWriter
from tests.builders import START_UNIX, Engine


def recording(path: Path, steps, *, before=None, gone: bool = False, **state) -> Path:
    engine = Engine(state=state)
    with RecordingWriter(path, "http://h:1", START_UNIX) as writer:
        writer.write(Entry(START_UNIX, "exposition", engine.page()))
        engine.run(steps)
        writer.write(Entry(START_UNIX + 20, "exposition", engine.page()))
        if steps:
            writer.write(Entry(START_UNIX + 20, "steps", engine.steps(steps)))
        if gone:
            writer.write(Entry(START_UNIX + 21, "event", "it is gone", "gone"))
    return path


def complaint(result: tuple[int, str, str], code: int = 2) -> str:
    got, out, err = result
    assert (got, out) == (code, ""), err
    assert err.startswith("stallscope: ")
    assert err.count("\n") == 1
    return err
