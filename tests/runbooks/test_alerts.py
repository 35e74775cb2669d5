"""The shipped Prometheus rules: fresh, valid by Prometheus' own tool, and firing when they should and only then."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.dialects.base import alias
from diagnose.dialects.sglang import SGLANG
from diagnose.dialects.stallscope import STALLSCOPE
from diagnose.dialects.view import canonical
from diagnose.dialects.vllm import VLLM
from probes.catalog import METRICS
from probes.recording import read_recording
from runbooks.alerts.metrics import ENGINES, _Names
from runbooks.alerts.rules import Objectives, alert_names, rules, to_yaml
from runbooks.errors import Refused
from tests.builders import Engine, make_steps

FOLDER = Path(__file__).parent.parent.parent / "runbooks" / "alerts"
VLLM_RECORDING = Path(__file__).parent.parent / "data" / "vllm-pressure.rec"
VLLM_PAGE = Path(__file__).parent.parent / "data" / "vllm-0.32.0-decode-01.prom"
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def promtool(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_shipped_files_are_what_the_code_makes_now(engine):
    shipped = (FOLDER / f"{engine}.rules.yml").read_text()
    assert shipped == to_yaml(engine, rules(engine)), f"stale: stallscope runbook alerts {engine} > {engine}.rules.yml"


@needs_promtool
@pytest.mark.parametrize("engine", ENGINES)
def test_prometheus_takes_them(engine):
    done = promtool("check", "rules", "--lint-fatal", FOLDER / f"{engine}.rules.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def names_in(engine: str) -> set[str]:
    """Metrics of the engine that its rules read."""
    expressions = " ".join(str(rule["expr"]) for _, group in rules(engine) for rule in group)
    return set(re.findall(rf"\b{engine}[:_][a-z_:]+", expressions))


def test_the_names_are_those_of_the_dialects_and_a_rename_there_is_one_here():
    """What the engine writes with a colon and an ending, a dialect holds without them."""
    for engine, dialect in (("stallscope", STALLSCOPE), ("vllm", VLLM), ("sglang", SGLANG)):
        known = {
            alias.metric.removesuffix("_total")
            for table in (dialect.counters, dialect.gauges, dialect.histograms)
            for aliases in table.values()
            for alias in aliases
        } | {failures.metric.removesuffix("_total") for failures in dialect.failures}
        spelled = {re.sub("_(bucket|count|total)$", "", canonical(name)) for name in names_in(engine)}
        assert len(spelled) >= 7 and spelled <= known, spelled - known
    renamed = replace(
        VLLM, counters={**VLLM.counters, "preemptions": (alias("vllm_evictions", since="1.2", why="a|b"),)}
    )
    names = _Names(renamed, ":")
    assert names.counter("preemptions") == 'vllm:evictions_total{why=~"a|b"}'
    assert names.gauge("waiting_capacity") == 'vllm:num_requests_waiting_by_reason{reason="capacity"}'
    assert names.since == "1.2", "1.2 is after 0.24"


def test_rules_for_vllm_read_metrics_that_a_real_one_exports():
    entries = read_recording(VLLM_RECORDING.read_bytes()).entries
    page = next(entry.body for entry in entries if entry.kind == "exposition")
    for name in names_in("vllm"):
        assert re.search(rf"^{name}[{{ ]", page, re.MULTILINE), name


def test_our_rules_read_metrics_that_our_engine_exports():
    engine = Engine()
    engine.run(make_steps(50))
    page = engine.page()
    for name in names_in("stallscope"):
        assert re.search(rf"^# TYPE {re.sub('_(bucket|count|total)$', '', name)}", page, re.MULTILINE), name


def test_bucket_bounds_are_those_of_the_exporter_and_of_a_real_vllm():
    for latency in (ENGINES["stallscope"].inter_token, ENGINES["stallscope"].first_token):
        assert latency.bounds == METRICS[latency.metric.removeprefix("stallscope_")].bounds
    page = VLLM_PAGE.read_text()
    latency = ENGINES["vllm"].inter_token
    found = re.findall(rf'^{latency.metric}_bucket{{[^}}]*le="([\d.]+)"', page, re.MULTILINE)
    assert tuple(map(float, found)) == latency.bounds


def test_there_is_no_alert_on_reserved_memory():
    for engine in ENGINES:
        assert "memory" not in to_yaml(engine, rules(engine)).lower()
    assert not [name for name in alert_names() if "Memory" in name]


def test_a_limit_that_no_bucket_can_count_is_refused():
    with pytest.raises(Refused, match=r"210 ms is no bucket bound of vllm's .*choose one of .*200 ms, 300 ms"):
        rules("vllm", Objectives(inter_token=0.21))


def histogram(metric: str, bounds: tuple[float, ...], fast: int, slow: int, *, limit: float) -> list[dict[str, str]]:
    """Per minute: so many events under the limit and so many beyond all bounds. As promtool's series."""
    rows = []
    for bound in (*bounds, float("inf")):
        step = fast if bound >= limit else 0
        step += slow if bound == float("inf") else 0
        le = "+Inf" if bound == float("inf") else str(bound)
        rows.append({"series": f'{metric}_bucket{{job="j",instance="i",le="{le}"}}', "values": f"0+{step}x420"})
    rows.append({"series": f'{metric}_count{{job="j",instance="i"}}', "values": f"0+{fast + slow}x420"})
    return rows


def fired(name: str, engine: str, summary: str, severity: str = "page") -> dict[str, object]:
    return {
        "exp_labels": {"severity": severity, "engine": engine, "job": "j", "instance": "i"},
        "exp_annotations": {"summary": f"{engine} i: {summary}", "runbook": f"stallscope runbook show {name}"},
    }


def check(
    tmp_path: Path, engine: str, series: list[dict[str, str]], expected: dict[str, list[dict[str, object]]]
) -> None:
    at = "6h50m"
    tests = [{"eval_time": at, "alertname": name, "exp_alerts": expected.get(name, [])} for name in alert_names()]
    group = {"interval": "1m", "input_series": series, "alert_rule_test": tests}
    document = {"rule_files": [str(FOLDER / f"{engine}.rules.yml")], "evaluation_interval": "1m", "tests": [group]}
    path = tmp_path / "rules.test.yml"
    path.write_text(json.dumps(document))  # JSON is YAML
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("engine", ENGINES)
def test_slow_tokens_fire_and_a_good_day_does_not(tmp_path, engine):
    names = ENGINES[engine]
    latency = names.inter_token
    base = [{"series": f'up{{job="{engine}",instance="i"}}', "values": "1x420"}]
    good = histogram(latency.metric, latency.bounds, 10_000, 0, limit=latency.limit)
    check(tmp_path, engine, [*base, *good], {})
    bad = histogram(latency.metric, latency.bounds, 750, 250, limit=latency.limit)
    text = "25% of the gaps between tokens took longer than 200 ms"
    slow = [fired("InterTokenLatencySlow", engine, text, severity) for severity in ("page", "ticket")]
    check(tmp_path, engine, [*base, *bad], {"InterTokenLatencySlow": slow})


@needs_promtool
def test_our_engine_in_trouble(tmp_path):
    where = 'job="j",instance="i"'
    series = [
        {"series": 'up{job="stallscope",instance="i"}', "values": "0x420"},
        {"series": f'stallscope_requests{{{where},state="running"}}', "values": "3x420"},
        {"series": f'stallscope_tokens_total{{{where},phase="decode"}}', "values": "100x420"},
        {"series": f'stallscope_requests_finished_total{{{where},reason="stop"}}', "values": "0+60x420"},
        {"series": f"stallscope_preemptions_total{{{where}}}", "values": "0+30x420"},
        {"series": f'stallscope_requests_waiting{{{where},reason="kv_blocks"}}', "values": "2x420"},
        {"series": f'stallscope_requests_waiting{{{where},reason="max_sequences"}}', "values": "9x420"},
        {"series": f"stallscope_kv_evictions_total{{{where}}}", "values": "0+600x420"},
        {"series": f"stallscope_kv_ghost_hits_total{{{where}}}", "values": "0+300x420"},
        {"series": f'stallscope_failures_total{{{where},kind="out_of_memory"}}', "values": "0+1x420"},
    ]
    down = fired("TargetDown", "stallscope", "it cannot be scraped")
    down["exp_labels"] = {"severity": "page", "engine": "stallscope", "job": "stallscope", "instance": "i"}
    check(
        tmp_path,
        "stallscope",
        series,
        {
            "TargetDown": [down],
            "EngineNotAdvancing": [fired("EngineNotAdvancing", "stallscope", "3 requests run and no token comes")],
            "PreemptionStorm": [fired("PreemptionStorm", "stallscope", "0.5 preemptions per request")],
            "CapacityWaits": [fired("CapacityWaits", "stallscope", "2 requests wait for KV blocks")],
            "CacheThrashing": [
                fired("CacheThrashing", "stallscope", "50% of the evicted blocks are asked for again", "ticket")
            ],
            "HardFailure": [fired("HardFailure", "stallscope", "5 failures were counted")],
        },
    )


WHERE = 'job="j",instance="i"'
TROUBLE = {
    "vllm": [
        {"series": f"vllm:num_requests_running{{{WHERE}}}", "values": "3x420"},
        {"series": f"vllm:generation_tokens_total{{{WHERE}}}", "values": "100x420"},
        {"series": f'vllm:request_success_total{{{WHERE},finished_reason="stop"}}', "values": "0+59x420"},
        {"series": f'vllm:request_success_total{{{WHERE},finished_reason="error"}}', "values": "0+1x420"},
        {"series": f"vllm:num_preemptions_total{{{WHERE}}}", "values": "0+30x420"},
        {"series": f'vllm:num_requests_waiting_by_reason{{{WHERE},reason="capacity"}}', "values": "2x420"},
        {"series": f'vllm:num_requests_waiting_by_reason{{{WHERE},reason="deferred"}}', "values": "9x420"},
        {"series": f"vllm:kv_cache_usage_perc{{{WHERE}}}", "values": "1x420"},
    ],
    "sglang": [
        {"series": f"sglang:num_running_reqs{{{WHERE}}}", "values": "3x420"},
        {"series": f'sglang:realtime_tokens_total{{{WHERE},mode="decode"}}', "values": "100x420"},
        {"series": f'sglang:realtime_tokens_total{{{WHERE},mode="prefill_cache"}}', "values": "0+9x420"},
        {"series": f"sglang:num_requests_total{{{WHERE}}}", "values": "0+60x420"},
        {"series": f"sglang:num_retracted_requests_total{{{WHERE}}}", "values": "0+30x420"},
        {"series": f"sglang:num_queue_reqs{{{WHERE}}}", "values": "2x420"},
        {"series": f"sglang:token_usage{{{WHERE}}}", "values": "0.97x420"},
    ],
}


@needs_promtool
@pytest.mark.parametrize("engine", TROUBLE)
def test_other_engines_in_trouble(tmp_path, engine):
    expected = {
        "EngineNotAdvancing": [fired("EngineNotAdvancing", engine, "3 requests run and no token comes")],
        "PreemptionStorm": [fired("PreemptionStorm", engine, "0.5 preemptions per request")],
        "CapacityWaits": [fired("CapacityWaits", engine, "2 requests wait for KV blocks")],
    }
    if engine == "vllm":
        expected["HardFailure"] = [fired("HardFailure", engine, "5 failures were counted")]
    check(tmp_path, engine, TROUBLE[engine], expected)


@needs_promtool
def test_a_full_looking_pool_alone_wakes_nobody(tmp_path):
    """SGLang at 99 % of its pool with an empty queue; vLLM's gauge at 1 with nothing waiting."""
    busy = [{"series": f"sglang:token_usage{{{WHERE}}}", "values": "0.99x420"},
            {"series": f"sglang:num_queue_reqs{{{WHERE}}}", "values": "0x420"}]  # fmt: skip
    check(tmp_path, "sglang", busy, {})
    check(tmp_path, "vllm", [{"series": f"vllm:kv_cache_usage_perc{{{WHERE}}}", "values": "1x420"}], {})
