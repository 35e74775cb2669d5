"""What people paste who are on call: evidence that is cut, joined, wrapped, exported or half of what was meant."""

import json
import time

import pytest

from diagnose.commands.diagnose import judge
from diagnose.diagnosis import Diagnosis
from diagnose.errors import DiagnoseError
from diagnose.sources.files import read_files
from tests.diagnose.cases import texts, verdict

V1 = (
    "INFO 11-03 07:00:{:02} [loggers.py:118] Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: 90.0 "
    "tokens/s, Running: 5 reqs, Waiting: 3 reqs, GPU KV cache usage: 93.8%, Prefix cache hit rate: 0.0%"
)
LINES = [V1.format(10 * n) for n in range(4)]


def page(tokens: int, *, stamp: str = "", model: str = "m") -> str:
    return (
        f"{stamp}# HELP vllm:num_requests_running r\n# TYPE vllm:num_requests_running gauge\n"
        f'vllm:num_requests_running{{model_name="{model}"}} 4\n'
        f"# HELP vllm:generation_tokens_total t\n# TYPE vllm:generation_tokens_total counter\n"
        f'vllm:generation_tokens_total{{model_name="{model}"}} {tokens}\n'
    )


@pytest.fixture
def paste(tmp_path):
    """What is made of one or more texts (or bytes)."""

    def read(*pasted: str | bytes) -> Diagnosis:
        names = []
        for index, text in enumerate(pasted):
            path = tmp_path / f"pasted-{index}"
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            names.append(str(path))
        observation = read_files(names, None).observation()
        return judge(observation, None, (), is_live=False, target=observation.target)

    return read


def refusal(paste, text: str | bytes) -> str:
    with pytest.raises(DiagnoseError) as caught:
        paste(text)
    said = str(caught.value)
    assert "\n" not in said
    return said


# ---- pages


def test_two_scrapes_in_one_file_are_a_window(paste):
    signals = paste(page(100) + page(250)).case.signals
    assert (signals.num_scrapes, signals.counters["tokens_decode"].delta) == (2, 150)


def test_scrapes_in_one_file_keep_their_times(paste):
    stamps = [f"# scraped_at_unix {1_796_011_200 + 10 * n}\n" for n in range(3)]
    signals = paste("".join(page(100 * n, stamp=stamp) for n, stamp in enumerate(stamps))).case.signals
    assert (signals.num_scrapes, signals.length_seconds, signals.counters["tokens_decode"].delta) == (3, 20, 200)


def test_a_family_that_is_declared_twice_is_no_second_page(paste):
    text = page(100) + "# HELP vllm:num_requests_running r\n# TYPE vllm:num_requests_running gauge\n"
    assert paste(text).case.signals.num_scrapes == 1


def test_a_page_with_windows_line_ends_or_in_utf_16(paste):
    """The second is what PowerShell makes of `curl ... > page`."""
    for data in (page(7).replace("\n", "\r\n").encode(), page(7).encode("utf-16"), b"\xef\xbb\xbf" + page(7).encode()):
        assert paste(data).case.signals.gauges["running"].last == 4


@pytest.mark.parametrize(
    "wrap",
    [
        "<div>this page was scanned</div>\n{}</html>\n",
        '<html><head><title>metrics</title></head><body><pre style="word-wrap: break-word;">\n{}</pre></body></html>',
    ],
)
def test_a_page_behind_a_proxy_that_added_html(paste, wrap):
    more = "".join(f'vllm:prompt_tokens_total{{engine="{n}"}} 1\n' for n in range(4))
    diagnosis = paste(wrap.format(page(7) + more))
    assert diagnosis.case.signals.gauges["running"].last == 4
    assert any("could not be read and were left out" in warning for warning in diagnosis.warnings)


def test_a_clock_in_the_future_is_told(paste):
    ahead = int(time.time()) + 90_000
    diagnosis = paste(*(page(100 * n, stamp=f"# scraped_at_unix {ahead + 10 * n}\n") for n in range(2)))
    assert any("ahead of this machine's clock" in warning for warning in diagnosis.warnings)
    past = paste(*(page(100 * n, stamp=f"# scraped_at_unix {ahead - 100_000 + 10 * n}\n") for n in range(2)))
    assert not any("ahead of" in warning for warning in past.warnings)


def test_a_page_of_several_models_says_that_it_adds_them_up(paste):
    both = page(100, model="a") + 'vllm:num_requests_running{model_name="b"} 3\n'
    diagnosis = paste(both)
    assert diagnosis.case.signals.gauges["running"].last == 7
    assert any("series of 2 models are on one page (a, b)" in warning for warning in diagnosis.warnings)


def test_openmetrics_with_exemplars_and_created_samples(paste):
    def exposed(count: int) -> str:
        return (
            "# TYPE vllm:time_to_first_token_seconds histogram\n"
            f'vllm:time_to_first_token_seconds_bucket{{le="0.1"}} {count} # {{trace_id="a"}} 0.05 1796011200.123\n'
            f'vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} {count}\nvllm:time_to_first_token_seconds_count {count}\n'
            f"vllm:time_to_first_token_seconds_sum {count / 20}\nvllm:time_to_first_token_seconds_created 1796010000.5\n"
            f"# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total {count} # {{}} 1\n# EOF\n"
        )

    signals = paste(exposed(10), exposed(30)).case.signals
    assert signals.histograms["time_to_first_token"].counts == (20, 0)
    assert signals.counters["tokens_decode"].delta == 20
    assert signals.length_seconds is None, "an exemplar's time is not the scrape's"


# ---- as JSON


def api(kind: str, *series: tuple[dict[str, str], list[tuple[int, str]]]) -> str:
    field = "values" if kind == "matrix" else "value"
    result = [{"metric": m, field: v if kind == "matrix" else v[0]} for m, v in series]
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}})


RUNNING = {"__name__": "vllm:num_requests_running", "pod": "a"}
TOKENS = {"__name__": "vllm:generation_tokens_total", "pod": "a"}


def test_a_range_query_of_prometheus_is_a_window(paste):
    times = [1_796_011_200 + 15 * n for n in range(5)]
    text = api(
        "matrix", (RUNNING, [(t, "8") for t in times]), (TOKENS, [(t, str(30 * n)) for n, t in enumerate(times)])
    )
    signals = paste(text).case.signals
    assert (signals.num_scrapes, signals.length_seconds) == (5, 60)
    assert signals.rate("tokens_decode") == 2


def test_an_instant_query_is_a_moment(paste):
    assert paste(api("vector", (RUNNING, [(1_796_011_200, "8")]))).case.signals.gauges["running"].last == 8


def test_series_of_several_targets_are_added_up_and_it_is_said(paste):
    other = RUNNING | {"pod": "b"}
    diagnosis = paste(api("vector", (RUNNING, [(1_796_011_200, "8")]), (other, [(1_796_011_200, "1")])))
    assert diagnosis.case.signals.gauges["running"].last == 9
    assert any("of 2 targets (pod)" in warning for warning in diagnosis.warnings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (api("vector", ({}, [(1_796_011_200, "8")])), "the result of an expression"),
        (api("vector"), "without a series in it"),
        (json.dumps({"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}), "JSON of no kind"),
        (json.dumps({"vllm:num_requests_running": 3}), "JSON of no kind"),
    ],
    ids=["an expression", "nothing", "a scalar", "a dump of somebody's own"],
)
def test_json_that_says_too_little(paste, text, said):
    assert said in refusal(paste, text)


def test_a_dump_of_prom2json_is_a_page(paste):
    dump = [
        {
            "name": "vllm:time_to_first_token_seconds",
            "type": "HISTOGRAM",
            "help": "t",
            "metrics": [
                {"labels": {"model_name": 'a "b"'}, "buckets": {"0.1": "3", "+Inf": "4"}, "count": "4", "sum": "1"}
            ],
        },
        {"name": "vllm:num_requests_running", "type": "GAUGE", "metrics": [{"value": "5"}]},
    ]
    diagnosis = paste(json.dumps(dump))
    assert diagnosis.case.signals.gauges["running"].last == 5
    assert diagnosis.case.signals.dialect == "vllm"


def test_slots_alone_are_a_moment_that_needs_more(paste):
    said = refusal(paste, json.dumps([{"n_ctx": 4096, "is_processing": True, "n_prompt_tokens": 3000}]))
    assert "one moment or settings, and no window" in said
    assert "two scrapes of /metrics" in said


# ---- tables


@pytest.mark.parametrize(
    "head", ['"Time","vllm-0 running"\n', "Time,running,waiting\n", 'sep=,\n"Time","a"\n', "timestamp;a;b\n"]
)
def test_a_table_of_a_dashboard_is_named_as_one(paste, head):
    rows = "".join(f"2026-11-03 07:00:{n:02},{n},3\n" for n in range(0, 60, 10))
    assert "a table of a dashboard" in refusal(paste, head + rows)


# ---- logs


def test_a_log_in_utf_16_and_with_windows_line_ends(paste):
    text = "\n".join(LINES)
    for data in (text.encode("utf-16"), text.replace("\n", "\r\n").encode()):
        signals = paste(data).case.signals
        assert (signals.counters["tokens_decode"].delta, signals.gauges["waiting"].last) == (3600, 3)


def test_the_start_of_a_log_alone_says_nothing_of_load_and_the_report_says_so(paste):
    start = "INFO 11-30 04:00:40 [kv_cache_utils.py:1087] GPU KV cache size: 299,584 tokens\n"
    served = 'INFO:     10.0.0.7:48232 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    args = "INFO 11-30 04:00:01 [utils.py:233] non-default args: {'disable_log_stats': True, 'max_num_seqs': 64}\n"
    for text in (start, args + start + 3 * served):
        diagnosis = paste(text)
        assert any("tells of load" in warning and "--disable-log-stats" in warning for warning in diagnosis.warnings)
        assert int(diagnosis.exit_code) == 3
    assert not any("tells of load" in warning for warning in paste(start + "\n".join(LINES)).warnings)


def test_a_log_that_breaks_off_in_the_middle_of_a_line_is_read_up_to_it(paste):
    signals = paste("\n".join(LINES)[: -len(LINES[-1]) // 2]).case.signals
    assert len(signals.gauges["pool_usage"].values) == 3


RETRACTING = """\
[2026-05-24 03:51:05 TP0] Decode batch, #running-req: 32, #token: 260000, token usage: 0.97, cuda graph: True, gen throughput (token/s): 1429.52, #queue-req: 13
[2026-05-24 03:51:06 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_tokens_gained: 31211, #new_token_ratio: 0.5123 -> 0.9812
[2026-05-24 03:51:08 TP0] Prefill batch, #new-seq: 3, #new-token: 8192, #cached-token: 0, token usage: 0.88, #running-req: 29, #queue-req: 13, #pending-token: 20000, cuda graph: False, input throughput (token/s): 9000.1
[2026-05-24 03:51:12 TP0] Decode batch, #running-req: 30, #token: 262000, token usage: 0.99, cuda graph: True, gen throughput (token/s): 429.52, #queue-req: 15
[2026-05-24 03:51:13 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 4, #new_tokens_gained: 35211, #new_token_ratio: 0.6123 -> 0.9912
[2026-05-24 03:51:20 TP0] Decode batch, #running-req: 28, #token: 262000, token usage: 0.99, cuda graph: True, gen throughput (token/s): 400.52, #queue-req: 18
"""  # noqa: E501 - as SGLang writes it


def test_a_log_with_retractions_shows_the_exhaustion_and_no_storm_yet(paste):
    diagnosis = paste(RETRACTING)
    assert diagnosis.primary == "kv_exhaustion"
    assert "the first time" in texts(diagnosis, "kv_exhaustion")
    assert diagnosis.case.signals.counters["preemptions"].delta == 7
    assert verdict(diagnosis, "preemption_storm") == "undetermined"


def test_json_lines_are_still_a_log(paste):
    lines = [json.dumps({"log": line + "\n", "time": f"2026-11-03T07:00:{10 * n:02}Z"}) for n, line in enumerate(LINES)]
    assert paste("\n".join(lines)).case.signals.gauges["running"].last == 5


def test_the_answer_of_a_tool_that_failed_is_named(paste):
    said = refusal(paste, 'Error from server (NotFound): pods "vllm-0" not found\n')
    assert "it begins with 'Error from server (NotFound)" in said


def test_an_export_of_a_log_collector_is_read_from_its_oldest_entry(paste):
    """An array, as `gcloud logging read --format json` gives it, the newest first."""
    entries = [
        {"textPayload": line, "timestamp": f"2026-11-03T07:00:{10 * n:02}Z", "resource": {"labels": {"pod_name": "a"}}}
        for n, line in enumerate(LINES)
    ]
    for text in (json.dumps(entries[::-1], indent=1), json.dumps(entries)):
        signals = paste(text).case.signals
        assert (signals.counters["tokens_decode"].delta, signals.length_seconds) == (3600, 40)


@pytest.mark.parametrize("stamp", ["2026-11-03T07:00:{:02}+0000 host vllm[12]: ", "Nov 03 07:00:{:02} host vllm[12]: "])
def test_a_journal_in_either_of_its_short_forms(paste, stamp):
    text = "\n".join(stamp.format(10 * n) + line for n, line in enumerate(LINES))
    signals = paste(text).case.signals
    assert (signals.counters["tokens_decode"].delta, len(signals.gauges["running"].values)) == (3600, 4)


TGI = (
    '2025-05-01T01:31:{:02}.841342Z  INFO generate_stream{{parameters=GenerateParameters {{ best_of: None }} total_time="{}" '
    'validation_time="5.669107ms" queue_time="{}" inference_time="1.2s" time_per_token="20.1ms" seed="None"}}: '
    "text_generation_router::server: router/src/server.rs:424: Success"
)


def test_a_log_of_tgi_has_the_queue_time_of_each_request(paste):
    diagnosis = paste("\n".join(TGI.format(n, "162.6s", "161.454300714s") for n in range(5)))
    signals = diagnosis.case.signals
    assert signals.histograms["queue_time"].mean == pytest.approx(161.454300714)
    assert signals.histograms["e2e_latency"].count == 5
    assert "queue time is 161.5 s of 162.6 s to the end of a request (99 %, means)" in texts(
        diagnosis, "queue_overload"
    )
    assert verdict(diagnosis, "queue_overload") == "undetermined", "whether the service itself slowed down is not in it"
    assert paste(TGI.format(0, "685.1ms", "686.203µs")).case.signals.histograms["queue_time"].mean == pytest.approx(
        686.203e-6
    )


def test_a_log_of_tgi_as_json(paste):
    span = {"total_time": "2.5s", "queue_time": "1.5s", "name": "generate"}
    line = {"timestamp": "2025-05-01T01:31:00Z", "level": "INFO", "message": "Success", "span": span}
    assert paste("\n".join([json.dumps(line)] * 3)).case.signals.histograms["queue_time"].sum == 4.5


def test_a_shard_of_tgi_that_was_killed_is_a_hard_failure(paste):
    lines = [
        "2024-08-11T09:36:31.932556Z ERROR shard-manager: text_generation_launcher: Shard process was signaled to shutdown with "
        "signal 9 rank=0",
        "2024-08-11T09:36:32.029976Z ERROR text_generation_launcher: Shard 0 failed to start",
    ]
    assert paste("\n".join(lines)).primary == "hard_failure"


GENAI = {
    "time_to_first_token": {"unit": "ms", "avg": 1500.0, "p50": 1400.0, "p99": 2900.0, "min": 1.0},
    "inter_token_latency": {"unit": "ms", "avg": 12.5, "p99": 14.0},
    "request_count": {"unit": "count", "avg": 100},
}
GENAI_CSV = (
    "Metric,avg,min,max,p99,p95,p90,p75,p50,p25\n"
    'Time To First Token (ms),"1,500.0",1.0,3000.0,"2,900.0",2.0,2.0,2.0,"1,400.0",2.0\n'
    "Inter Token Latency (ms),12.5,1.0,20.0,14.0,13.0,13.0,13.0,12.0,11.0\n"
)


@pytest.mark.parametrize(
    "text", [json.dumps(GENAI), json.dumps(GENAI, indent=2), GENAI_CSV], ids=["json", "indented", "csv"]
)
def test_the_exports_of_genai_perf(paste, text):
    gauges = paste(text).case.signals.gauges
    assert gauges["client_ttft_mean"].last == 1.5
    assert (gauges["client_ttft_p99"].last, gauges["client_itl_p99"].last) == (2.9, 0.014)


BENCH = (
    "============ Serving Benchmark Result ============\nBenchmark duration (s): 10.0\nMean TTFT (ms): 100.0\n"
    "P99 TTFT (ms): 200.0\n==================================================\n"
)


def test_a_terminal_with_a_server_and_its_benchmark_holds_both(paste):
    signals = paste("\n".join(LINES) + "\n" + BENCH).case.signals
    assert signals.gauges["client_ttft_p99"].last == 0.2
    assert signals.gauges["running"].last == 5


DESCRIBED = """\
Name:             vllm-0
    State:          Waiting
      Reason:       CrashLoopBackOff
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
    Restart Count:  5
"""
EVENT = "5m   Warning   OOMKilling   node/a   Memory cgroup out of memory: Killed process 1 (python) total-vm:1kB\n"


@pytest.mark.parametrize("text", [DESCRIBED, EVENT])
def test_what_kubernetes_says_of_a_container_that_it_killed(paste, text):
    diagnosis = paste(text)
    assert diagnosis.primary == "hard_failure"
    assert "out_of_memory" in texts(diagnosis, "hard_failure")


def test_a_list_of_models_is_no_log(paste):
    models = {"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 4096}]}
    assert "JSON of no kind" in refusal(paste, json.dumps(models))


QUOTES = {
    "a mail": "> {}",
    "a chat": "\u2022 {}",
    "line numbers": "     7\t{}",
    "grep -n": "7:{}",
    "a collector's labels": '2026-11-03T07:00:00Z {{pod="a"}} {}',
}


@pytest.mark.parametrize("quote", QUOTES.values(), ids=QUOTES)
def test_lines_that_were_quoted(paste, quote):
    assert paste("\n".join(quote.format(line) for line in LINES)).case.signals.gauges["running"].values == (5, 5, 5, 5)
