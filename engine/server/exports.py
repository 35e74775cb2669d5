"""Which exporters run beside the engine. OpenTelemetry is imported only when somebody wants it."""

import os
import socket

from engine.errors import ConfigError
from engine.loop import EngineFacts
from engine.server.options import ServeOptions
from probes.exports import ExportThread
from probes.prometheus import EngineCollector, exposition
from probes.recorder import RingRecorder
from probes.recording_export import RecordingExport, open_recording

RECORD_INTERVAL_SECONDS = 1.0


def make_exports(
    options: ServeOptions,
    recorder: RingRecorder,
    collector: EngineCollector,
    facts: EngineFacts,
    model: str,
    version: str,
) -> list[ExportThread]:
    """Not started yet. Raises ConfigError when the recording cannot be begun or a variable holds no number."""
    exports: list[ExportThread] = []
    if options.record is not None:
        try:
            writer = open_recording(options.record, f"{model} on {socket.gethostname()}")
        except OSError as error:
            raise ConfigError(f"--record {options.record}: {error.strerror or error}") from error
        recording = RecordingExport(writer, recorder, facts.engine_id, lambda: exposition(collector).decode())
        exports.append(ExportThread(recording, RECORD_INTERVAL_SECONDS))
    signals = [signal for signal in ("METRICS", "TRACES") if _is_sent(signal, options)]
    if signals:
        from probes.otlp import MetricsExport, SpansExport, make_resource

        resource, endpoint = make_resource(version, facts.engine_id), options.otlp_endpoint
        if "METRICS" in signals:
            metrics = MetricsExport(collector.readings, facts.start_unix, resource, endpoint)
            exports.append(ExportThread(metrics, _milliseconds("OTEL_METRIC_EXPORT_INTERVAL", 60_000)))
        if "TRACES" in signals:
            spans = SpansExport(recorder, model, facts.engine_id, resource, endpoint)
            exports.append(ExportThread(spans, _milliseconds("OTEL_BSP_SCHEDULE_DELAY", 5_000)))
    return exports


def _is_sent(signal: str, options: ServeOptions) -> bool:
    """By the option, or by OpenTelemetry's variables."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    variables = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return options.otlp_endpoint is not None or any(os.environ.get(name) for name in variables)


def _milliseconds(variable: str, default: int) -> float:
    """Seconds."""
    text = os.environ.get(variable) or str(default)
    try:
        milliseconds = int(text)
    except ValueError:
        milliseconds = 0
    if milliseconds < 1:
        raise ConfigError(f"{variable}={text!r} should be a number of milliseconds above 0")
    return milliseconds / 1000
