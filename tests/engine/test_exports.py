"""Which exporters an engine runs, by its options and by OpenTelemetry's variables."""

from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.loop import EngineFacts
from engine.server.exports import make_exports
from engine.server.options import ServeOptions
from probes.exports import ExportThread
from probes.recorder import RingRecorder
from tests.builders import make_collector

BASE, METRICS, TRACES = (f"OTEL_EXPORTER_OTLP_{part}ENDPOINT" for part in ("", "METRICS_", "TRACES_"))
URL = "http://127.0.0.1:4318"


def exports(**options: object) -> list[ExportThread]:
    recorder = RingRecorder()
    facts = EngineFacts("engine-1", {}, None, 1.0, {})
    return make_exports(
        ServeOptions(**options),  # type: ignore[arg-type]
        recorder,
        make_collector(recorder),
        facts,
        "tiny",
        "1",
    )


def names(**options: object) -> list[str]:
    return [export.counters.exporter for export in exports(**options)]


def test_nothing_leaves_the_process_unasked():
    assert names() == []


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({BASE: URL}, ["otlp_metrics", "otlp_spans"]),
        ({METRICS: f"{URL}/v1/metrics"}, ["otlp_metrics"]),
        ({TRACES: f"{URL}/v1/traces"}, ["otlp_spans"]),
        ({BASE: URL, "OTEL_SDK_DISABLED": "true"}, []),
        ({BASE: ""}, []),
    ],
)
def test_the_environment_decides_without_the_option(monkeypatch, variables, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert names() == expected


def test_options(tmp_path: Path):
    assert names(record=tmp_path / "a.rec", otlp_endpoint=URL) == ["recording", "otlp_metrics", "otlp_spans"]


def test_what_cannot_be_begun_is_said_at_the_start(tmp_path: Path, monkeypatch):
    with pytest.raises(ConfigError, match=r"--record \S+: No such file or directory"):
        exports(record=tmp_path / "no" / "such" / "folder")
    for url in ("collector:4318", "http://", "ftp://h", "http://h:x"):
        with pytest.raises(ConfigError, match="--otlp-endpoint must be a URL like"):
            exports(otlp_endpoint=url)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "often")
    with pytest.raises(ConfigError, match="OTEL_METRIC_EXPORT_INTERVAL='often' should be a number of milliseconds"):
        exports(otlp_endpoint=URL)
