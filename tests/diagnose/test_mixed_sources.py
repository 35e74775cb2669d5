"""The command on any mix of what people have: a URL and a log, two URLs, files of several kinds, and what is no evidence."""

import gzip
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from diagnose.cli import main
from diagnose.dialects.registry import DIALECTS
from diagnose.errors import TargetError
from diagnose.sources.http import Endpoint
from diagnose.sources.live import Watch, first_page
from tests.diagnose.fake_target import FakeClock, raw, serving

DATA = Path(__file__).resolve().parent.parent / "data/vllm"
LIVE = ("--window", "5s", "--interval", "1s")
SERVER_INFO = {
    "vllm_config": {
        "scheduler_config": {"max_num_batched_tokens": 512, "max_num_seqs": 16},
        "cache_config": {"block_size": 128, "num_gpu_blocks": 182},
        "model_config": {"served_model_name": "smol", "max_model_len": 2048, "dtype": "torch.float32"},
    }
}


@pytest.fixture
def stallscope(monkeypatch, capsys):
    monkeypatch.setattr("diagnose.sources.clock.SystemClock", FakeClock)

    def run(*arguments: object):
        monkeypatch.setattr(sys, "argv", ["stallscope", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return stopped.value.code, captured.out, captured.err

    return run


def unpacked(name: str) -> str:
    return gzip.decompress((DATA / name).read_bytes()).decode()


def growing() -> Callable[[], str]:
    """A vLLM server that generates."""
    state = {"tokens": 0}

    def page() -> str:
        state["tokens"] += 20
        return (
            f"vllm:generation_tokens_total {state['tokens']}\nvllm:num_requests_running 4\nvllm:num_requests_waiting 0\n"
            "vllm:kv_cache_usage_perc 0.1\nvllm:prompt_tokens_total 5\n"
        )

    return page


def test_a_url_and_a_log(stallscope):
    with serving(growing()) as target:
        _, out, _ = stallscope("diagnose", target.url, *LIVE, "--log", DATA / "engine-main.log.gz", "--json")
    window = json.loads(out)["windows"]["incident"]
    assert window["dialect"] == "vllm + vllm log"
    assert window["signals"]["max_sequences"] == {"last": 16, "peak": 16, "source": "start-up log"}
    assert any("a log of vllm 0.32.0" in source for source in window["sources"])


def test_a_log_may_be_one_of_the_sources(stallscope):
    with serving(growing()) as target:
        _, out, _ = stallscope("diagnose", DATA / "engine-main.log.gz", target.url, *LIVE, "--json")
    assert json.loads(out)["windows"]["incident"]["dialect"] == "vllm + vllm log"


def test_settings_come_from_the_server_itself(stallscope):
    others = {"/server_info?config_format=json": json.dumps(SERVER_INFO), "/version": '{"version": "0.32.0"}'}
    with serving(growing(), others=others) as target:
        _, out, _ = stallscope("diagnose", target.url, *LIVE, "--json")
        assert target.asked.count("/version") == 1
    window = json.loads(out)["windows"]["incident"]
    assert window["signals"]["max_batched_tokens"]["source"] == "vLLM's /server_info"
    assert "/version: /version" in window["sources"]


def test_settings_that_nothing_states_are_asked_for_and_taken(stallscope):
    with serving(growing()) as target:
        _, out, _ = stallscope("diagnose", target.url, *LIVE, "--setting", "max_sequences=4", "--json")
    assert json.loads(out)["windows"]["incident"]["signals"]["max_sequences"]["source"] == "stated with --setting"
    code, _, err = stallscope("diagnose", "x", "--setting", "speed=1")
    assert (code, err.count("\n")) == (2, 1)


def test_two_urls_are_watched_at_once(stallscope):
    """An exporter beside the engine; the target is the first one, and the other's end is not its end."""
    with serving(growing()) as engine, serving("ray_serve_deployment_queued_queries 12\n") as exporter:
        _, out, _ = stallscope("diagnose", engine.url, exporter.url, *LIVE, "--json")
    document = json.loads(out)
    assert document["target"] == engine.url
    assert document["windows"]["incident"]["dialect"] == "vllm + ray serve"
    assert any("up to 12 requests waited before the engine" in text for text in document["warnings"])


def test_a_second_url_that_fails_is_left_out(stallscope):
    with serving(growing()) as engine, serving(raw("503 Busy")) as exporter:
        code, out, _ = stallscope("diagnose", engine.url, exporter.url, *LIVE, "--json")
    assert any(text.startswith(f"left out: {exporter.url}") for text in json.loads(out)["warnings"])
    assert code in (0, 1, 3)


def test_llamacpp_slots_are_read_beside_each_page():
    state = {"n": 0}

    def page() -> str:
        state["n"] += 10
        return f"llamacpp:n_decode_total {state['n']}\nllamacpp:requests_processing 1\n"

    slots = json.dumps([{"n_ctx": 4096, "is_processing": True, "n_prompt_tokens": 1024}])
    with serving(page, others={"/slots": slots}) as target:
        entries = Watch(Endpoint(target.url, 1.0), FakeClock()).run(3.0, 1.0)
    assert [entry.event for entry in entries if entry.kind == "state"] == ["/slots"] * 3


@pytest.mark.parametrize("status", ["404 Not Found", "501 Not Implemented"])
def test_a_server_without_metrics_is_told_how_to_have_some(status):
    with (
        serving(raw(status)) as target,
        pytest.raises(TargetError, match="SGLang serves metrics with --enable-metrics"),
    ):
        first_page(Endpoint(target.url))


def test_json_at_metrics_is_tensorrt_llms():
    with serving("[]") as target, pytest.raises(TargetError, match=r"at http://.*/prometheus/metrics"):
        first_page(Endpoint(target.url))


# ---- what is no evidence


def one_line(result: tuple[int, str, str], code: int = 2) -> str:
    got, out, err = result
    assert (got, out, err.count("\n")) == (code, "", 1), err
    return err


USELESS = {
    "html": (b"<!DOCTYPE html>\n<html><head><title>Grafana</title></head></html>", "an HTML page (Grafana)"),
    "nginx": (
        b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>\r\n",
        "an HTML page (502 Bad Gateway)",
    ),
    "elf": (b"\x7fELF\x02\x01\x01" + b"\x00" * 500, "is not text"),
    "prose": (
        b"it is slow since tuesday\n",
        "text of no kind this version knows (it begins with 'it is slow since tuesday')",
    ),
    "json": (b'{"choices": []}', "JSON of no kind this version knows"),
    "access log": (b'127.0.0.1 - - [30/Nov/2026] "GET /" 200\n' * 5, "text of no kind this version knows"),
}


@pytest.mark.parametrize(("data", "seen"), USELESS.values(), ids=USELESS.keys())
def test_useless_inputs_are_answered_in_one_line(stallscope, tmp_path, data, seen):
    path = tmp_path / "input"
    path.write_bytes(data)
    text = one_line(stallscope("diagnose", path))
    assert seen in text
    assert "what can be read: a recording, step records" in text


def test_an_empty_file_and_a_huge_one(stallscope, tmp_path):
    path = tmp_path / "input"
    path.touch()
    assert "is empty" in one_line(stallscope("diagnose", path))
    os.truncate(path, 2 << 30)  # sparse: two gigabytes of nothing
    assert "is not text" in one_line(stallscope("diagnose", path))


def test_a_scrape_of_node_exporter(stallscope, tmp_path):
    path = tmp_path / "node.prom"
    path.write_text("# TYPE node_load1 gauge\nnode_load1 0.5\n# TYPE go_goroutines gauge\ngo_goroutines 8\n")
    text = one_line(stallscope("diagnose", path, path))
    assert "a metrics page of node_exporter, which says nothing of an engine; it needs the metrics of an engine" in text


def test_a_page_with_a_broken_line_is_used_and_it_is_said(stallscope, tmp_path):
    path = tmp_path / "page.prom"
    path.write_text(unpacked("decode-1.prom.gz") + 'vllm:broken{x="1\n')
    _, out, _ = stallscope("diagnose", path, DATA / "decode-5.prom.gz", "--json")
    assert any(
        text.startswith("1 line(s) of 1 metrics page(s) could not be read") for text in json.loads(out)["warnings"]
    )


# ---- times


@pytest.mark.parametrize("moment", ["2026-11-30T04:13", "2026-11-30 04:13:00"])
def test_since_and_until(stallscope, moment):
    log = DATA / "engine-kv.log.gz"
    _, out, _ = stallscope("diagnose", log, "--json")
    _, later, _ = stallscope("diagnose", log, "--since", moment, "--until", "2026-11-30T04:13:40", "--json")
    all_of_it, part = (json.loads(text)["windows"]["incident"]["length_seconds"] for text in (out, later))
    assert part < all_of_it
    assert part <= 50


def test_a_part_of_a_log_counts_from_its_start(stallscope):
    _, out, _ = stallscope("diagnose", DATA / "engine-kv.log.gz", "--since", "2m", "--json")
    found = json.loads(out)["windows"]["incident"]["signals"]
    assert found["max_sequences"]["last"] == 16, "settings hold whenever they were stated"
    _, whole, _ = stallscope("diagnose", DATA / "engine-kv.log.gz", "--json")
    assert (
        found["tokens_decode"]["delta"] < json.loads(whole)["windows"]["incident"]["signals"]["tokens_decode"]["delta"]
    )


def test_what_is_no_time(stallscope):
    code, _, err = stallscope("diagnose", "x", "--since", "yesterday")
    assert code == 2
    assert "write 2m for so long after the start, or 2026-11-30T04:11" in err


# ---- stallscope sources


def test_sources_lists_every_engine(stallscope):
    code, out, _ = stallscope("sources")
    assert code == 0
    for dialect in DIALECTS:
        assert f"\n{dialect.name} " in out
    assert "\ntransformers serve " in out


@pytest.mark.parametrize("name", [*(dialect.name for dialect in DIALECTS), "transformers serve"])
def test_sources_describes_each_engine(stallscope, name):
    code, out, _ = stallscope("sources", name)
    assert code == 0
    assert out.startswith(name)


def test_sources_says_how_to_get_the_rest(stallscope):
    _, out, _ = stallscope("sources", "vllm")
    words = " ".join(out.split())
    assert "steps: no" in words
    assert "start vLLM with --enable-logging-iteration-details" in words
    assert "its pool usage counts what live requests hold; cached blocks that nobody uses count as free" in words
    assert "no engine 'acme'; there are stallscope, vllm" in one_line(stallscope("sources", "acme"))
