"""The DCGM exporter's page as evidence beside an engine: its units, its blanks, its slow refresh, its missing fields."""

import pytest

from diagnose.diagnosis import diagnose
from diagnose.dialects.dcgm import device_signals, gpu_uuids, lay_beside, speaks
from diagnose.exposition import ExpositionParser
from diagnose.observation import Scrape
from diagnose.signals import COUNTERS, GAUGES
from tests.builders import make_exposition, make_signals
from tests.diagnose import cases
from tests.diagnose.cases import verdict

DEFAULT = {
    "DCGM_FI_DEV_SM_CLOCK": 1980,
    "DCGM_FI_DEV_MEM_CLOCK": 2619,
    "DCGM_FI_DEV_GPU_TEMP": 61,
    "DCGM_FI_DEV_POWER_USAGE": 412.5,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0,
    "DCGM_FI_DEV_GPU_UTIL": 97,
    "DCGM_FI_DEV_XID_ERRORS": 0,
    "DCGM_FI_DEV_FB_USED": 130000,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.91,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.22,
    "DCGM_FI_PROF_DRAM_ACTIVE": 0.71,
    "DCGM_FI_PROF_PCIE_TX_BYTES": 123456789,
    "DCGM_FI_PROF_PCIE_RX_BYTES": 3000000000,
}
"""What the exporter's own list of counters asks for, as far as it is read here."""


def page(*gpus: dict[str, float], extra: str = "") -> str:
    names = {name for gpu in gpus for name in gpu}
    lines = []
    for name in sorted(names):
        lines.append(f"# TYPE {name} gauge")
        for index, gpu in enumerate(gpus):
            labels = (
                f'gpu="{index}",UUID="GPU-{index}",device="nvidia{index}",modelName="NVIDIA H200",Hostname="n"{extra}'
            )
            if name in gpu:
                lines.append(f"{name}{{{labels}}} {gpu[name]}")
    return "\n".join(lines) + "\n"


def scrapes(*texts: str, interval: float = 30.0) -> list[Scrape]:
    parser = ExpositionParser()
    return [Scrape(1000.0 + index * interval, parser.parse(text)) for index, text in enumerate(texts)]


def gpu(**over: float) -> dict[str, float]:
    return DEFAULT | {f"DCGM_FI_{name}": value for name, value in over.items()}


def test_units_are_base_units():
    found = device_signals(scrapes(page(gpu()), page(gpu())))
    assert {name: gauge.last for name, gauge in found.gauges.items()} == {
        "gpu_dram_active": 0.71,
        "gpu_tensor_active": 0.22,
        "gpu_active": 0.91,
        "gpu_busy": 0.97,
        "gpu_sm_clock": 1.98e9,
        "gpu_memory_clock": 2.619e9,
        "gpu_power": 412.5,
        "gpu_temperature": 61,
        "gpu_pcie_tx": 123456789,
        "gpu_pcie_rx": 3e9,
        "gpu_memory_used": 130000 * 2**20,
        "gpu_last_xid": 0,
    }
    assert {name: counter.delta for name, counter in found.counters.items()} == {
        "gpu_pcie_replays": 0,
        "gpu_xid_errors": 0,
    }
    assert found.gauges["gpu_sm_clock"].source == "DCGM_FI_DEV_SM_CLOCK"
    assert found.notes == []


def test_every_name_is_a_canonical_signal():
    everything = gpu(DEV_CLOCKS_EVENT_REASONS=0, DEV_ECC_DBE_VOL_TOTAL=0, DEV_ECC_SBE_VOL_TOTAL=0, PROF_SM_ACTIVE=0.5)
    found = device_signals(scrapes(page(everything), page(everything)))
    assert found.gauges.keys() <= set(GAUGES)
    assert found.counters.keys() <= set(COUNTERS)
    assert found.gauges["gpu_sm_active"].last == 0.5


@pytest.mark.parametrize(
    "blank",
    [
        9223372036854775792,
        9223372036854775793,
        9223372036854775794,
        9223372036854775795,
        2147483632,
        2147483634,
        140737488355328.0,
        140737488355330.0,
        float("nan"),
    ],
)
@pytest.mark.parametrize(
    ("field", "signal"),
    [
        ("DEV_SM_CLOCK", "gpu_sm_clock"),
        ("DEV_POWER_USAGE", "gpu_power"),
        ("DEV_GPU_TEMP", "gpu_temperature"),
        ("PROF_DRAM_ACTIVE", "gpu_dram_active"),
        ("PROF_PCIE_RX_BYTES", "gpu_pcie_rx"),
        ("DEV_CLOCK_THROTTLE_REASONS", "gpu_throttle_hw_thermal"),
        ("DEV_XID_ERRORS", "gpu_last_xid"),
    ],
)
def test_a_blank_is_no_measurement(blank, field, signal):
    """ "Not supported" is written as a huge number, and must not become a clock of nine billion gigahertz."""
    found = device_signals(scrapes(page(gpu(**{field: blank})), page(gpu(**{field: blank}))))
    assert signal not in found.gauges


def test_a_blank_counter_that_gets_a_value_did_not_grow():
    blank, one = gpu(DEV_ECC_DBE_VOL_TOTAL=9223372036854775794), gpu(DEV_ECC_DBE_VOL_TOTAL=1)
    assert "gpu_ecc_uncorrected" not in device_signals(scrapes(page(blank), page(one))).counters


def test_a_share_above_one_is_no_measurement():
    assert "gpu_dram_active" not in device_signals(scrapes(page(gpu(PROF_DRAM_ACTIVE=97.0)))).gauges


def test_a_page_without_profiling_fields_says_so_and_keeps_the_rest():
    bare = {name: value for name, value in DEFAULT.items() if "_PROF_" not in name}
    found = device_signals(scrapes(page(bare), page(bare)))
    assert "gpu_dram_active" not in found.gauges
    assert found.gauges["gpu_sm_clock"].last == 1.98e9
    assert "no profiling fields" in found.notes[0]


def test_between_two_collections_no_growth_is_unknown():
    """Two scrapes 15 s apart may show one and the same reading."""
    still = device_signals(scrapes(page(gpu()), page(gpu()), interval=15))
    assert still.counters == {}
    assert "every 30 s" in still.notes[0]
    grown = device_signals(scrapes(page(gpu()), page(gpu(DEV_PCIE_REPLAY_COUNTER=5)), interval=15))
    assert grown.counters["gpu_pcie_replays"].delta == 5
    quicker = device_signals(scrapes(page(gpu()), page(gpu()), interval=15), refresh_seconds=1)
    assert quicker.counters["gpu_pcie_replays"].delta == 0


def test_one_page_has_levels_and_no_growth():
    found = device_signals(scrapes(page(gpu())))
    assert found.gauges["gpu_sm_clock"].values == (1.98e9,)
    assert found.counters == {}


def test_no_page_says_nothing():
    assert device_signals([]).gauges == {}
    assert device_signals([]).notes == []


@pytest.mark.parametrize("name", ["DEV_CLOCK_THROTTLE_REASONS", "DEV_CLOCKS_EVENT_REASONS"])
def test_throttle_reasons_are_bits_of_one_number(name):
    found = device_signals(scrapes(page(gpu(**{name: 1})), page(gpu(**{name: 0x60}))))
    assert {n: g.values for n, g in found.gauges.items() if "throttle" in n} == {
        "gpu_throttle_hw_slowdown": (0, 0),
        "gpu_throttle_hw_thermal": (0, 1),
        "gpu_throttle_sw_thermal": (0, 1),
        "gpu_throttle_power_brake": (0, 0),
        "gpu_throttle_power_cap": (0, 0),
    }


@pytest.mark.parametrize(
    ("codes", "expected"), [((0, 0), 0), ((0, 79), 1), ((31, 31), 0), ((31, 79), 1), ((79, 0), 0), ((0, 13, 79), 2)]
)
def test_the_last_xid_is_a_code_and_no_count(codes, expected):
    found = device_signals(scrapes(*[page(gpu(DEV_XID_ERRORS=code)) for code in codes]))
    assert found.counters["gpu_xid_errors"].delta == expected
    assert found.gauges["gpu_last_xid"].last == codes[-1]


def test_the_slowest_and_hottest_of_a_targets_gpus_count():
    slow = gpu(DEV_SM_CLOCK=600, DEV_GPU_TEMP=88, DEV_POWER_USAGE=200, PROF_DRAM_ACTIVE=0.11)
    both = device_signals(scrapes(page(gpu(), slow), page(gpu(), slow)))
    assert both.gauges["gpu_sm_clock"].last == 6e8
    assert both.gauges["gpu_temperature"].last == 88
    assert both.gauges["gpu_power"].last == 612.5
    assert both.gauges["gpu_dram_active"].last == pytest.approx(0.41)
    assert "has 2 GPUs" in both.notes[0]
    one = device_signals(scrapes(page(gpu(), slow), page(gpu(), slow)), uuids={"GPU-0"})
    assert one.gauges["gpu_sm_clock"].last == 1.98e9
    assert one.notes == []


def test_a_gpu_that_the_page_does_not_have_is_named():
    found = device_signals(scrapes(page(gpu())), uuids={"GPU-9"})
    assert found.gauges == {}
    assert found.notes[0] == "DCGM does not see GPU-9"


def test_the_instances_of_a_split_gpu_are_kept_apart():
    text = page(gpu(), extra=',GPU_I_ID="1"') + page(gpu(PROF_DRAM_ACTIVE=0.01), extra=',GPU_I_ID="2"')
    assert device_signals(scrapes(text)).gauges["gpu_dram_active"].last == pytest.approx(0.36)


def test_a_counter_that_fell_began_again():
    first, second = gpu(DEV_ECC_DBE_VOL_TOTAL=7), gpu(DEV_ECC_DBE_VOL_TOTAL=2)
    found = device_signals(
        scrapes(page(first, gpu(DEV_ECC_DBE_VOL_TOTAL=1)), page(second, gpu(DEV_ECC_DBE_VOL_TOTAL=4)))
    )
    assert found.counters["gpu_ecc_uncorrected"].delta == 2 + 3


def test_only_its_own_pages_are_recognised():
    parser = ExpositionParser()
    assert speaks(parser.parse(page(gpu())))
    assert not speaks(parser.parse(make_exposition()))
    assert gpu_uuids(parser.parse(page(gpu(), gpu()))) == {"GPU-0", "GPU-1"}


def test_what_the_engine_says_of_its_own_device_stands():
    signals = make_signals(gauges={"gpu_sm_clock": 1.5e9}, counters={"gpu_xid_errors": 2.0})
    device = device_signals(scrapes(page(gpu()), page(gpu())))
    lay_beside(signals, device)
    assert (signals.last("gpu_sm_clock"), signals.delta("gpu_xid_errors")) == (1.5e9, 2.0)
    assert (signals.last("gpu_dram_active"), signals.delta("gpu_pcie_replays")) == (0.71, 0.0)


@pytest.mark.parametrize(("mask", "expected"), [(0x40, "supported"), (0x1, "refuted"), (0x4, "refuted")])
def test_a_dcgm_page_beside_a_silent_engine_decides_on_its_device(mask, expected):
    signals = make_signals(counters={"tokens_decode": 500.0})
    hot = page(gpu(DEV_CLOCK_THROTTLE_REASONS=mask))
    lay_beside(signals, device_signals(scrapes(hot, hot)))
    assert verdict(diagnose(cases.TARGET, signals, is_live=True), "device_degraded") == expected
