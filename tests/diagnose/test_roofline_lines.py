"""The reports say how near a decode step comes to the ceilings, and what that rests on, wherever it can be computed."""

from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.report import html, markdown, terminal
from diagnose.report.page import Page
from diagnose.report.roofline_lines import TITLE, roofline_lines
from diagnose.signals import Gauge, Signals
from probes.records import StepKind
from tests.probes.records import make_record

LLAMA_8B = {
    "num_layers": "32",
    "num_query_heads": "32",
    "head_dim": "128",
    "num_parameters": "8000000000",
    "weight_bytes": "16000000000",
    "kv_bytes_per_token": str(128 * 1024),
    "dtype": "float16",
    "attention_backend": "triton",
}
CEILINGS = {
    "bandwidth_ceiling": Gauge((4.8e12,), "device_bandwidth_bytes_per_second"),
    "flops_ceiling": Gauge((989e12,), "device_flops_per_second"),
}


def window(info: dict[str, str] = LLAMA_8B, gauges: dict[str, Gauge] = CEILINGS) -> Diagnosis:
    """Forty decode steps of 32 sequences at 4096 tokens, 20 ms each: 33.18 GB and 0.58 TFLOP per step."""
    record = make_record(
        kind=StepKind.DECODE,
        num_decode_seqs=32,
        decode_context_tokens=32 * 4096,
        forward_ns=19_000_000,
        sample_ns=1_000_000,
        forward_cpu_ns=None,
    )
    signals = Signals("stallscope", 10.0, 2, gauges=gauges, info=info)
    signals.steps = (record,) * 40
    return diagnose("a-server", signals, is_live=True)


def test_a_decode_step_is_read_as_a_share_of_both_ceilings():
    step, *assumptions = roofline_lines(window())
    assert step.startswith("pure decode step, 20 ms, 32 sequences with 131,072 tokens of context (the median of 40): ")
    # 33.18 GB in 20 ms of 4.8 TB/s; 2 * 32 * 8e9 + 4 * 32 * 32 * 131,072 * 128 FLOPs in 20 ms of 989 TFLOP/s.
    assert "reads 1659.0 GB/s, 35 % of 4800.0 GB/s (MBU)" in step
    assert "computes 29036.0 GFLOP/s, 3 % of 989000.0 (MFU)" in step
    assert step.endswith("limited by memory, at the ceilings")
    assert "nominal traffic model" in assumptions[0] and "kernel launches" in assumptions[1]


def test_without_a_ceiling_or_a_geometry_there_is_no_section():
    assert roofline_lines(window(gauges={})) == []
    assert roofline_lines(window(info={})) == []
    assert TITLE not in terminal.render(window(info={}), Page(width=80, styled=False))


def test_every_report_has_the_section():
    diagnosis = window()
    assert TITLE in terminal.render(diagnosis, Page(width=80, styled=False))
    assert f"## {TITLE}" in markdown.render(diagnosis)
    assert TITLE.partition("'")[0] in html.render(diagnosis)


def test_a_share_above_all_of_it_says_what_is_wrong():
    slow = CEILINGS | {"bandwidth_ceiling": Gauge((1e12,), "device_bandwidth_bytes_per_second")}
    assert "166 % of 1000.0 GB/s (MBU)" in roofline_lines(window(gauges=slow))[0]
    assert "the ceiling was measured while the machine was busy" in roofline_lines(window(gauges=slow))[0]
    assert "busy" not in roofline_lines(window())[0]
