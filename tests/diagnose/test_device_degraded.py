"""A degraded GPU: what throttling matters, which clocks compare, which errors are the hardware's."""

from typing import Any

import pytest

from diagnose.diagnosis import Diagnosis, diagnose
from probes.gpu import GpuState, ThrottleReason
from tests.builders import make_signals
from tests.diagnose import cases
from tests.diagnose.cases import finding, look, texts, verdict
from tests.probes.gpus import IDENTITY, healthy_gpu

NAME = "device_degraded"
SOUND = {"gpu_ecc_uncorrected": 0.0, "gpu_xid_errors": 0.0}
COOL = {f"gpu_throttle_{name}": (0.0, 0.0) for name in ("hw_slowdown", "hw_thermal", "sw_thermal", "power_brake")}


def bare(
    counters: dict[str, float] | None = None,
    gauges: dict[str, Any] | None = None,
    baseline: dict[str, Any] | None = None,
    **fields: Any,
) -> Diagnosis:
    """A target that says nothing else; `baseline`: gauges of the window before."""
    worked = {"tokens_decode": 500.0}
    before = None if baseline is None else make_signals(counters=worked, gauges=baseline)
    now = make_signals(counters=worked | (counters or {}), gauges=gauges or {}, **fields)
    return diagnose(cases.TARGET, now, before, is_live=True)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (ThrottleReason.HW_SLOWDOWN, "supported"),
        (ThrottleReason.HW_THERMAL, "supported"),
        (ThrottleReason.SW_THERMAL, "supported"),
        (ThrottleReason.HW_POWER_BRAKE, "supported"),
        (ThrottleReason.GPU_IDLE, "refuted"),
        (ThrottleReason.APPLICATION_CLOCKS, "refuted"),
        (ThrottleReason.SW_POWER_CAP, "refuted"),
        (ThrottleReason.SYNC_BOOST, "refuted"),
        (ThrottleReason.DISPLAY_CLOCKS, "refuted"),
    ],
)
def test_some_reasons_for_lower_clocks_are_faults_and_others_somebodys_choice(reason, expected):
    throttled = look(cases.throttled(reason, clock_mhz=1980, slowdown=1.0))
    assert verdict(throttled, NAME) == expected, texts(throttled, NAME)


def test_a_hot_gpu_that_slows_every_step_is_the_primary_cause():
    diagnosis = look(cases.throttled(ThrottleReason.HW_THERMAL), cases.quiet())
    assert diagnosis.primary == NAME
    text = texts(diagnosis, NAME)
    assert "clocks were held down by heat (by hardware) for 100 % of the window" in text
    assert "the processors' clock is 900 MHz, 45 % of the baseline's 1980 MHz" in text
    assert "the median decode step is 2.00x the baseline's" in text
    assert "another GPU of the kind" in diagnosis.decision.summary
    assert finding(diagnosis, NAME).judgement.share_of_excess == pytest.approx(1.0, abs=0.1)


def test_throttling_that_slows_nothing_is_open():
    """Held down, and as fast as the baseline: one of the two measurements misleads."""
    diagnosis = look(cases.throttled(ThrottleReason.HW_THERMAL, slowdown=1.0), cases.quiet())
    assert verdict(diagnosis, NAME) == "undetermined"
    assert "on a cool GPU" in texts(diagnosis, NAME)


@pytest.mark.parametrize(("hot", "expected"), [((1.0, 0.0), "supported"), ((1.0,) + (0.0,) * 30, "refuted")])
def test_a_moment_of_heat_is_none_of_the_window(hot, expected):
    assert verdict(bare(SOUND, COOL | {"gpu_throttle_sw_thermal": hot}), NAME) == expected


def test_the_drivers_own_count_sees_heat_between_samples():
    diagnosis = bare(SOUND | {"gpu_throttled_thermal_seconds": 4.0}, COOL)
    assert verdict(diagnosis, NAME) == "supported"
    assert "for 20 % of the window" in texts(diagnosis, NAME)


def test_the_power_limit_under_full_load_is_context():
    diagnosis = bare(SOUND, COOL | {"gpu_throttle_power_cap": (1.0, 1.0)})
    assert verdict(diagnosis, NAME) == "refuted"
    assert "ordinary under full load" in texts(diagnosis, NAME)


@pytest.mark.parametrize(
    ("clock_mhz", "slowdown", "expected"),
    [(900, 2.0, "supported"), (900, 1.0, "refuted"), (1900, 2.0, "refuted"), (1900, 1.0, "refuted")],
)
def test_a_lower_clock_matters_where_steps_slowed_with_it(clock_mhz, slowdown, expected):
    """No reason is stated: somebody set the clocks, or the driver does not say."""
    diagnosis = look(cases.throttled(clock_mhz=clock_mhz, slowdown=slowdown), cases.quiet())
    assert verdict(diagnosis, NAME) == expected, texts(diagnosis, NAME)


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        ({"gpu_sm_clock": 1.1e9}, {"gpu_sm_clock": 1.98e9}, "supported"),
        ({"gpu_sm_clock": 1.9e9}, {"gpu_sm_clock": 1.98e9}, "refuted"),
        ({"gpu_sm_clock": 1.1e9, "gpu_busy": 0.2}, {"gpu_sm_clock": 1.98e9, "gpu_busy": 0.9}, "undetermined"),
        ({"gpu_sm_clock": 1.1e9, "gpu_busy": 0.9}, {"gpu_sm_clock": 1.98e9, "gpu_busy": 0.1}, "undetermined"),
        ({"gpu_sm_clock": 1.1e9}, {}, "undetermined"),
        ({"gpu_sm_clock": 1.1e9}, None, "undetermined"),
    ],
)
def test_only_clocks_of_two_busy_windows_compare(now, before, expected):
    assert verdict(bare(SOUND, now, before), NAME) == expected


def test_clocks_of_an_idle_window_do_not_compare():
    diagnosis = bare(SOUND | {"tokens_decode": 0.0}, {"gpu_sm_clock": 3e8}, {"gpu_sm_clock": 1.98e9})
    assert verdict(diagnosis, NAME) == "undetermined"


@pytest.mark.parametrize(
    ("counters", "gauges", "expected", "said"),
    [
        ({"gpu_ecc_uncorrected": 1.0, "gpu_xid_errors": 0.0}, {}, "supported", "1 uncorrected memory errors"),
        ({"gpu_xid_errors": 1.0}, {"gpu_last_xid": 79}, "supported", "the last one 79"),
        ({"gpu_xid_errors": 1.0}, {"gpu_last_xid": 31}, "undetermined", "a program's own fault gives, too"),
        (SOUND | {"gpu_ecc_corrected": 500.0}, COOL, "refuted", "no uncorrected memory error and no XID"),
        (SOUND, COOL | {"gpu_last_xid": 79}, "refuted", "no uncorrected memory error and no XID"),
        ({"gpu_xid_errors": 0.0}, COOL, "refuted", "x_gpu_xid_errors did not grow"),
        ({}, COOL, "undetermined", "uncorrected memory errors and XIDs over the window"),
        (SOUND, {"gpu_temperature": 95}, "undetermined", "not collected by default"),
    ],
)
def test_errors_of_the_window_and_of_the_hardware_count(counters, gauges, expected, said):
    diagnosis = bare(counters, gauges)
    assert verdict(diagnosis, NAME) == expected, texts(diagnosis, NAME)
    assert said in texts(diagnosis, NAME)


def test_an_xid_of_a_program_on_a_sound_device_is_the_programs():
    diagnosis = bare({"gpu_xid_errors": 1.0}, COOL | {"gpu_last_xid": 43})
    assert verdict(diagnosis, NAME) == "refuted"
    assert "a program's own fault gives, too" in texts(diagnosis, NAME)


def test_a_lost_gpu_is_a_degraded_one():
    lost = healthy_gpu(state=GpuState.LOST)
    diagnosis = look(cases.quiet(gpu=lost))
    assert verdict(diagnosis, NAME) == "supported"
    assert "the driver lost the GPU" in texts(diagnosis, NAME)


def test_an_engine_on_the_cpu_has_no_gpu_to_degrade():
    diagnosis = look(cases.quiet(gpu=None, info={"version": "0.1.0", "device": "cpu: a processor, 2 threads"}))
    assert verdict(diagnosis, NAME) == "not_applicable"


def test_a_gpu_without_figures_leaves_it_open_with_commands():
    silent = healthy_gpu(
        **dict.fromkeys(("throttle", "ecc_uncorrected", "ecc_corrected", "xid_errors", "last_xid", "sm_clock_hz"))
    )
    assert silent.uuid == IDENTITY["uuid"]
    diagnosis = look(cases.quiet(gpu=silent))
    assert verdict(diagnosis, NAME) == "undetermined"
    assert [missing.command.split()[0] for missing in finding(diagnosis, NAME).judgement.missing] == ["nvidia-smi"] * 2


def test_faults_of_the_engines_probes_are_told():
    diagnosis = bare({"probe_errors": 3.0})
    assert any("3 faults inside the engine's probes" in warning for warning in diagnosis.warnings)
    assert not any("faults inside" in warning for warning in bare({"probe_errors": 0.0}).warnings)


def test_an_engine_whose_probes_failed_is_not_called_idle():
    """Every request was unknown to its probes, say: then their counters stand still while it works."""
    still = {"tokens_decode": 0.0}
    assert bare(still).idle
    faulty = bare(still | {"probe_errors": 3.0})
    assert not faulty.idle
    assert any("faults inside" in warning for warning in faulty.warnings)
