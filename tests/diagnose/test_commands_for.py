"""Every command of a report is for this very target and engine, and can be pasted as it stands."""

import pytest

from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.dialects.base import TOPICS
from diagnose.dialects.registry import DIALECTS, engine_of
from diagnose.hypotheses.base import command_for, set_knob
from diagnose.observation import Event, observe
from probes.recording import Entry
from tests.builders import START_UNIX, Engine, make_signals
from tests.diagnose import cases
from tests.diagnose.cases import look, verdict
from tests.diagnose.situations import each_situation

ENGINES = [dialect for dialect in DIALECTS if dialect.is_engine]
PROGRAMS = ("stallscope ", "curl ", "nvidia-smi ", "py-spy ", "perf ", "pip install ", "# ")


def speaking(dialect: str, budget: float | None = 2048) -> Diagnosis:
    """A page of this engine on which mixed steps are far slower than pure decode steps; nothing else is told."""
    advice = next((d.cannot for d in DIALECTS if d.name == dialect), {})
    signals = make_signals(
        dialect=dialect,
        advice=advice,
        counters={"tokens_prefill": 5000.0, "stall_prefill_seconds": 2.5},
        gauges={} if budget is None else {"max_batched_tokens": budget},
        histograms={"step_decode": {0.008: 200}, "step_mixed": {0.060: 50}},
    )
    return diagnose(cases.TARGET, signals, is_live=True)


def commands(diagnosis: Diagnosis) -> list[str]:
    lacked = [missing.command for f in diagnosis.findings for missing in f.judgement.missing]
    steps = [step.command for step in diagnosis.decision.steps if step.command]
    return [*lacked, *steps, *(item.command for item in diagnosis.protocol)]


@pytest.mark.parametrize("dialect", [*(dialect.name for dialect in ENGINES), "unknown engine, best effort"])
def test_no_engine_is_told_the_commands_of_another(dialect):
    """Step records, the census and the admin surface are our engine's own."""
    for command in commands(speaking(dialect)):
        assert command.startswith(PROGRAMS), command
        assert "{" not in command.replace("{port}", "").replace('{"max', ""), command
        if dialect != "stallscope":
            assert "/debug/" not in command
            assert "/admin/" not in command


@each_situation
def test_every_command_can_be_pasted(diagnosis):
    for command in commands(diagnosis):
        assert command.startswith(PROGRAMS), command


@pytest.mark.parametrize("topic", ["blocks", "steps", "host"])
@pytest.mark.parametrize("dialect", [dialect.name for dialect in ENGINES])
def test_each_measurement_of_the_protocol_has_a_command_or_says_that_there_is_none(dialect, topic):
    diagnosis = speaking(dialect)
    item = diagnosis.protocol[("blocks", "steps", "host").index(topic)]
    assert cases.TARGET in item.command or item.command.startswith(("pip install", "perf record", "# ")), item.command


def test_the_protocol_of_the_engines_that_people_run():
    """The first line of each, up to its comment."""
    said = {
        name: [item.command.partition("   # ")[0] for item in speaking(name).protocol[:3]]
        for name in ("stallscope", "vllm", "sglang", "llamacpp")
    }
    at = cases.TARGET
    look_again = f"stallscope diagnose {at} --window 60s"
    logged, beside = f"stallscope diagnose {at} --window 60s --log FILE", f"stallscope diagnose {at} --pid PID"
    assert said == {
        "stallscope": [f"curl -s {at}/debug/census", f"curl -s '{at}/debug/steps?since=0'", look_again],
        "vllm": ["pip install .", logged, beside],
        "sglang": [look_again, logged, beside],
        "llamacpp": [f"curl -s {at}/slots", logged, "perf record -g -p PID"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "change", "confirm"),
    [
        ("stallscope", '"max_batched_tokens": 512', "--knob max_batched_tokens=2048,512 --admin-token-file TOKEN_FILE"),
        ("vllm", "# start the server again with --max-num-batched-tokens 512", "--max-num-batched-tokens 512'"),
        ("sglang log", "# start the server again with --chunked-prefill-size 512", "--chunked-prefill-size 2048'"),
        (
            "stallscope + vllm",
            "# start the server again with --max-num-batched-tokens 512",
            "--launch-a 'START_COMMAND",
        ),
        ("ray serve", "# start the server again with max_batched_tokens 512", "BUDGET_OPTION 512'"),
    ],
)
def test_an_experiment_changes_the_knob_of_this_engine(dialect, change, confirm):
    diagnosis = speaking(dialect)
    assert verdict(diagnosis, "prefill_interference") == "supported"
    steps = diagnosis.decision.steps
    assert change in steps[1].command
    assert confirm in steps[-1].command
    assert "--hypothesis prefill_interference" in steps[-1].command
    assert steps[3].text == "undo"
    assert "2048" in steps[3].command


def test_a_budget_that_nobody_stated_is_not_made_up():
    diagnosis = speaking("vllm", budget=None)
    assert "the present token budget with a quarter of it" in diagnosis.decision.summary
    assert diagnosis.decision.steps[1].command == "# start the server again with --max-num-batched-tokens N"


def test_only_a_server_that_can_change_its_budget_while_it_serves_is_contained_so():
    """A restart would drop every stream: arrivals are shed instead."""
    case = look(cases.interference(), slo="itl_p99=20ms").case
    for dialect, act in (("stallscope", "lower the token budget"), ("vllm", "shed or reroute a quarter")):
        case.signals.dialect = dialect
        diagnosis = diagnose(cases.TARGET, case.signals, is_live=True, objectives=case.objectives)
        assert diagnosis.decision.kind == "contain"
        assert diagnosis.decision.steps[0].text.startswith(act)


@pytest.mark.parametrize(("situation", "number"), [(cases.capped, 80), (cases.exhaustion, 48)])
def test_other_experiments_set_their_knob_too(situation, number):
    """64 sequences at most now: a quarter more where the cap binds, a quarter fewer where the pool does."""
    change, undo = (look(situation()).decision.steps[index].command for index in (1, 3))
    assert f'"max_sequences": {number}' in change
    assert '"max_sequences": 64' in undo


def test_whose_engine_it_is():
    assert engine_of("stallscope + vllm") is engine_of("vllm") is engine_of("vllm log")
    assert engine_of("stallscope + dcgm exporter") is engine_of("stallscope")
    assert engine_of("") is engine_of("dcgm exporter") is None


def test_probes_that_are_there_are_not_advised():
    case = speaking("stallscope + vllm").case
    assert "pip install" not in command_for(case, "blocks")
    assert "--log FILE" in command_for(case, "limits"), "the budget is vLLM's own to tell"
    assert set_knob(case, "max_sequences", 12).endswith("--max-num-seqs 12")


def test_our_probes_in_another_engine_do_not_say_what_it_cannot_do():
    """vLLM speculates, and serves with separate prefill and decode; our engine's page says of itself that it does neither."""
    page = Engine().page() + "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\n"
    entries = [Entry(START_UNIX + at, "exposition", page) for at in (1, 2, 3)]
    diagnosis = look(observe(cases.TARGET, entries))
    assert diagnosis.case.signals.dialect == "stallscope + vllm"
    for name in ("speculation_loss", "transfer_stall"):
        assert verdict(diagnosis, name) == "undetermined"
        assert verdict(look(cases.quiet()), name) == "not_applicable"


def test_commands_are_of_known_topics_and_settings():
    for dialect in DIALECTS:
        assert dialect.commands.keys() <= TOPICS.keys()
        assert dialect.knobs.keys() <= {"max_batched_tokens", "max_sequences"}


@pytest.mark.parametrize(
    ("url", "events", "expected"),
    [
        (
            "http://127.0.0.1:9",
            ("no_step_records",),
            "stallscope diagnose http://127.0.0.1:9   # on the server's machine",
        ),
        ("http://127.0.0.1:9", (), f"curl -s '{cases.TARGET}/debug/steps?since=0'"),
        ("$(reboot)", ("no_step_records",), f"curl -s '{cases.TARGET}/debug/steps?since=0'"),
    ],
)
def test_step_records_that_only_the_probe_s_own_port_serves(url, events, expected):
    """vLLM without VLLM_PLUGINS: the metrics page says where they are, and the page's own server has none."""
    signals = make_signals(dialect="stallscope + vllm", info={"debug_url": url})
    seen = [Event(1, kind, "http://h/debug/steps: answered HTTP 404") for kind in events]
    diagnosis = diagnose(cases.TARGET, signals, is_live=True, events=seen)
    steps = next(item for item in diagnosis.protocol if item.name == "step durations by kind")
    assert steps.command.startswith(expected)


def test_what_only_the_driver_knows_is_given_beside_the_target():
    asked = [command for command in commands(speaking("vllm")) if command.startswith("nvidia-smi ")]
    assert asked
    assert all(f"into gpu.csv; then stallscope diagnose {cases.TARGET} gpu.csv" in command for command in asked)
