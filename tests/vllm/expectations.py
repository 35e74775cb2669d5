"""What a diagnosis of each recorded condition must say, be the recording fresh or kept."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from diagnose.cli import stallscope
from diagnose.exposition import Exposition, ExpositionParser
from probes.recording import Entry, RecordingWriter, read_recording

VLLM_PREEMPTIONS = "vllm:num_preemptions_total"
PROBE_PREEMPTIONS = "stallscope_preemptions_total"


def diagnose(*arguments: str | Path) -> dict[str, Any]:
    result = CliRunner().invoke(stallscope, ["diagnose", *map(str, arguments), "--json"])
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def verdict(diagnosis: dict[str, Any], hypothesis: str) -> str:
    return str(diagnosis["verdicts"][hypothesis]["verdict"])


def expect_interference(mixed: Path, quiet: Path, client: dict[str, float]) -> None:
    """Prefill interference, with an account whose parts add up to the gaps that the clients saw."""
    diagnosis = diagnose(mixed, "--baseline", quiet)
    assert verdict(diagnosis, "prefill_interference") == "supported"
    assert diagnosis["primary"] == "prefill_interference"
    account = diagnosis["account"]["p99"]
    assert sum(account["parts"].values()) == pytest.approx(account["total_seconds"])
    assert account["total_seconds"] == pytest.approx(client["slowest_percent_mean"], rel=0.25)
    assert max(account["parts"], key=account["parts"].get) == "prefill"


def expect_quiet(quiet: Path) -> None:
    diagnosis = diagnose(quiet)
    assert verdict(diagnosis, "prefill_interference") == "refuted"
    assert verdict(diagnosis, "kv_exhaustion") == "refuted"
    assert verdict(diagnosis, "preemption_storm") == "refuted"


def expect_nothing_claimed_by_scrape_alone(quiet: Path, scratch: Path) -> None:
    """A vLLM without the probe books a prompt when it has ended: what it shows of decodes alone accuses no prefill."""
    alone = scratch / "alone.rec"
    without_probe(quiet, alone)
    found = diagnose(alone)["verdicts"]["prefill_interference"]
    assert found["verdict"] in ("refuted", "undetermined")
    assert found["verdict"] == "refuted" or found["missing"]


def expect_reservation(after: Path) -> None:
    """Memory is nearly all reserved; the pool is full of content that can be given up, and hardly any of it is active."""
    diagnosis = diagnose(after)
    assert verdict(diagnosis, "expected_reservation") == "supported"
    assert verdict(diagnosis, "kv_exhaustion") == "refuted"


def expect_pressure(pressure: Path, scratch: Path) -> None:
    """The pool is exhausted and sequences preempt each other; that is known before vLLM's own counter has moved."""
    whole = diagnose(pressure)
    assert verdict(whole, "kv_exhaustion") == "supported"
    assert verdict(whole, "preemption_storm") == "supported"
    early = scratch / "early.rec"
    assert until_vllm_counts(pressure, early) > 0, "the probe has counted preemptions by then"
    diagnosis = diagnose(early)
    assert verdict(diagnosis, "kv_exhaustion") == "supported"
    assert verdict(diagnosis, "preemption_storm") == "supported"


def until_vllm_counts(recording: Path, target: Path) -> float:
    """Keeps what came before vLLM's counter moved. Returns the preemptions that the probe had counted in that window."""
    kept: list[Entry] = []
    pages: list[Exposition] = []
    found = read_recording(recording.read_bytes())
    for entry in found.entries:
        if entry.kind == "exposition":
            page = ExpositionParser().parse(entry.body)
            if pages and value(page, VLLM_PREEMPTIONS) != value(pages[0], VLLM_PREEMPTIONS):
                break
            pages.append(page)
        kept.append(entry)
    write(target, found.target, found.started_unix, kept)
    return value(pages[-1], PROBE_PREEMPTIONS) - value(pages[0], PROBE_PREEMPTIONS)


def value(page: Exposition, metric: str) -> float:
    return sum(page.samples[metric].values())


def without_probe(recording: Path, target: Path) -> None:
    """What a vLLM without the probe would have answered."""
    found = read_recording(recording.read_bytes())
    entries = [
        replace(entry, body="".join(line for line in entry.body.splitlines(True) if "stallscope_" not in line))
        for entry in found.entries
        if entry.kind == "exposition"
    ]
    write(target, found.target, found.started_unix, entries)


def write(target: Path, name: str, started_unix: float, entries: list[Entry]) -> None:
    with RecordingWriter(target, name, started_unix) as writer:
        for entry in entries:
            writer.write(entry)
