"""The host probe on a real process, and its parts as functions of text."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from probes import host
from probes.folded import FoldedStack, parse_folded
from probes.host import HostProbe, HostProbeError, explain
from probes.host_profile import HostProfile, HostProfileError, ThreadUse, decode_host, encode_host
from probes.proc_threads import process_tree, thread_counters
from probes.stack_patterns import Activity, Role, activity_of, role_of

SERVER = textwrap.dedent(
    """
    import threading, time

    def schedule():
        number = 0
        while True:
            number += 1

    def doze():
        while True:
            threading.Event().wait(0.05)

    threading.Thread(target=doze, name="dozing", daemon=True).start()
    print("ready", flush=True)
    schedule()
    """
)


@pytest.fixture
def spinning(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of two threads: the main one spins in `schedule`, of a file named as an engine's scheduler."""
    script = tmp_path / "scheduler.py"
    script.write_text(SERVER)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def looked(pid: int, seconds: float) -> HostProfile:
    probe = HostProbe(pid, seconds)
    probe.start()
    time.sleep(seconds)
    return probe.finish()


def use(profile: HostProfile, name: str) -> ThreadUse:
    return next(thread for thread in profile.threads if thread.name == name)


@pytest.mark.slow
def test_a_spinning_thread_is_found_with_what_it_does_and_the_lock_it_holds(spinning):
    if host.find_py_spy() is None:
        pytest.skip("py-spy is not installed")
    profile = looked(spinning.pid, 6.0)
    if any("may not look into" in limit for limit in profile.limits):
        pytest.skip(profile.limits[0])
    assert profile.limits == ()
    main, dozing = use(profile, "MainThread"), use(profile, "dozing")
    assert main.activities[Activity.SCHEDULING] > 0.9
    assert dozing.activities[Activity.WAITING] > 0.9
    assert main.run_share is not None and dozing.run_share is not None
    assert main.run_share > 5 * dozing.run_share
    assert main.gil_share is not None and dozing.gil_share is not None
    assert main.gil_share > dozing.gil_share
    assert profile.gil_held_share is not None


def test_without_py_spy_the_kernels_counters_are_left(spinning, monkeypatch):
    monkeypatch.setattr(host, "find_py_spy", lambda: None)
    profile = looked(spinning.pid, 0.5)
    assert profile.limits == ("stacks were not sampled: py-spy is not installed: pip install 'stallscope[host]'",)
    busiest = max(profile.threads, key=lambda thread: thread.run_share or 0)
    assert busiest.tid == spinning.pid
    assert (busiest.run_share or 0) + (busiest.delay_share or 0) > 0.5
    assert busiest.gil_share is None
    assert profile.gil_held_share is None
    assert profile.delay_share is not None


def test_a_process_that_ends_meanwhile_is_said_so(spinning, monkeypatch):
    monkeypatch.setattr(host, "find_py_spy", lambda: None)
    probe = HostProbe(spinning.pid, 1.0)
    probe.start()
    spinning.kill()
    spinning.wait()
    assert probe.finish().limits[-1] == f"process {spinning.pid} ended in the window"


def test_a_probe_is_stopped_early(spinning):
    probe = HostProbe(spinning.pid, 600.0)
    probe.start()
    probe.stop()
    assert probe.finish().seconds < 60


def test_there_must_be_such_a_process():
    with pytest.raises(HostProbeError, match="no process 4194305 on this machine"):
        HostProbe(4194305, 1.0)


def test_a_failing_py_spy_is_explained(spinning, tmp_path, monkeypatch):
    fake = tmp_path / "py-spy"
    fake.write_text("#!/bin/sh\necho 'Error: Permission Denied: Try running again with sudo' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(host, "find_py_spy", lambda: str(fake))
    profile = looked(spinning.pid, 0.3)
    assert len(profile.limits) == 1
    assert f"py-spy may not look into process {spinning.pid}" in profile.limits[0]


@pytest.mark.parametrize(
    ("complaint", "said"),
    [
        ("Error: Permission Denied: Try running again with elevated permissions", "kernel.yama.ptrace_scope"),
        ("Error: Failed to suspend process\nReason: EPERM: Operation not permitted", "SYS_PTRACE"),
        (
            "Error: Failed to get process executable name. Check that the process is running.\n\nCaused by:\n"
            "    0: No such file or directory (os error 2)",
            "process 7 is gone",
        ),
        ("Error: Failed to find python version from target process", "runs no Python"),
        ("py-spy> Sampling\n\x1b[31mError: something else\x1b[0m", "something else"),
        ("", "py-spy gave no sample"),
    ],
)
def test_what_py_spy_says_becomes_one_sentence(complaint, said):
    text = explain(complaint, 7)
    assert said in text
    assert "\n" not in text
    assert "\x1b" not in text


# ---- folded stacks


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            'process 12:"python server.py";thread (14): MainThread;<module> (server.py:9);serve (server.py:4) 196',
            FoldedStack(12, 14, "MainThread", ("<module> (server.py:9)", "serve (server.py:4)"), 196),
        ),
        ("thread (15146): waiter;run (t.py:1) 11", FoldedStack(None, 15146, "waiter", ("run (t.py:1)",), 11)),
        ("thread (0x7F2A): w;run (t.py:1) 1", FoldedStack(None, 0x7F2A, "w", ("run (t.py:1)",), 1)),
        ("thread (5);run (t.py:1) 2", FoldedStack(None, 5, "", ("run (t.py:1)",), 2)),
        ("thread (5): idle 2", FoldedStack(None, 5, "idle", (), 2)),
        (
            'process 1:"python -c \\"a;b\\" 3";thread (2): x (y);f (a b.py:3) 4',
            FoldedStack(1, 2, "x (y)", ("f (a b.py:3)",), 4),
        ),
    ],
)
def test_a_folded_line(line, expected):
    assert parse_folded(line + "\n") == [expected]


@pytest.mark.parametrize("text", ["", "\n\n", "no thread 5\n", "thread (5): x;f (a.py:1)\n", "thread (x): y 1 2 z\n"])
def test_what_is_no_folded_line_is_left_out(text):
    assert parse_folded(text) == []


# ---- patterns


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (["run_busy_loop (vllm/v1/engine/core.py:9)", "schedule (vllm/v1/core/sched/scheduler.py:300)"], "scheduling"),
        (["get_next_batch_to_run (sglang/srt/managers/scheduler.py:1)"], "scheduling"),
        (["match_prefix (sglang/srt/mem_cache/radix_cache.py:10)"], "scheduling"),
        (["step (engine/core.py:70)", "schedule (engine/scheduler.py:88)"], "scheduling"),
        (["app (uvicorn/x.py:1)", "encode (json/encoder.py:200)"], "serialising"),
        (["process (vllm/v1/serial_utils.py:80)"], "serialising"),
        (["_encode_plus (transformers/tokenization_utils_fast.py:1)"], "tokenising"),
        (["render (jinja2/environment.py:1)"], "tokenising"),
        (["update (vllm/v1/engine/detokenizer.py:110)"], "detokenising"),
        (
            ["execute_model (vllm/v1/worker/gpu_model_runner.py:1)", "_call_impl (torch/nn/modules/module.py:1)"],
            "forward",
        ),
        (["forward (vllm/v1/sample/sampler.py:40)"], "sampling"),
        (["step (engine/core.py:1)", "wait (threading.py:324)"], "waiting"),
        (["run_busy_loop (vllm/v1/engine/core.py:9)", "get (queue.py:180)", "wait (threading.py:320)"], "waiting"),
        (["Loop.run (engine/loop.py:1)", "Condition.wait (threading.py:324)"], "waiting"),
        (["Scheduler.schedule (mine/policy.py:4)"], "scheduling"),
        (["run (asyncio/base_events.py:1)", "select (selectors.py:468)"], "waiting"),
        (["handle (starlette/routing.py:1)"], "serving"),
        (["<module> (my.py:1)"], "other"),
        ([], "other"),
    ],
)
def test_a_stack_says_what_its_thread_does(frames, expected):
    assert activity_of(frames) == expected


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (["run_engine_core (vllm/v1/engine/core.py:1)", "run_busy_loop (vllm/v1/engine/core.py:9)"], Role.ENGINE),
        (["event_loop_overlap (sglang/srt/managers/scheduler.py:1)"], Role.ENGINE),
        (["run (engine/loop.py:10)"], Role.ENGINE),
        (["worker_busy_loop (vllm/v1/executor/multiproc_executor.py:1)"], Role.WORKER),
        (["serve (uvicorn/server.py:1)"], Role.FRONTEND),
        (["event_loop (sglang/srt/managers/detokenizer_manager.py:1)"], Role.FRONTEND),
        (["<module> (x.py:1)"], Role.OTHER),
    ],
)
def test_a_stack_says_what_its_thread_is_for(frames, expected):
    assert role_of(frames) is expected


# ---- counters and the wire


def test_threads_and_children_are_counted(spinning):
    counters = thread_counters(os.getpid())
    assert os.getpid() in counters
    assert {thread.pid for thread in counters.values()} >= {os.getpid(), spinning.pid}
    assert spinning.pid in process_tree(os.getpid())


PROFILE = HostProfile(
    pid=7,
    seconds=10.0,
    threads=(
        ThreadUse(pid=7, tid=7, name="MainThread", role=Role.FRONTEND, run_share=0.9, delay_share=0.05, gil_share=0.8),
        ThreadUse(pid=7, tid=8, name="loop", role=Role.ENGINE, delay_share=0.2, gil_share=0.1),
        ThreadUse(
            pid=9, tid=9, name="worker", activities={Activity.FORWARD: 0.7, Activity.WAITING: 0.3}, gil_share=0.5
        ),
    ),
    limits=("a limit",),
)


def test_a_profile_comes_back_from_the_wire():
    assert decode_host(encode_host(PROFILE)) == PROFILE


def test_the_signals_of_a_profile():
    assert PROFILE.gil_held_share == pytest.approx(0.9), "of one process, whose lock it is"
    assert PROFILE.delay_share == 0.2, "the engine's loop, not the frontend"
    bare = replace(PROFILE, threads=())
    assert bare.gil_held_share is None
    assert bare.delay_share is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"stallscope_host": 9}', '{"stallscope_host": 1, "pid": 1}'])
def test_what_is_no_profile_is_refused(text):
    with pytest.raises(HostProfileError):
        decode_host(text)


def test_an_unknown_role_is_refused():
    with pytest.raises(HostProfileError, match="butler"):
        decode_host(encode_host(PROFILE).replace('"engine"', '"butler"'))
