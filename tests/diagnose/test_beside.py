"""What people paste beside a log: nvidia-smi in its forms, py-spy, a load generator's result."""

import pytest

from diagnose.commands.diagnose import judge
from diagnose.diagnosis import Diagnosis
from diagnose.errors import SourceError
from diagnose.signals import Signals
from diagnose.sources.files import read_files
from diagnose.sources.nvidia_smi import read_nvidia_smi
from diagnose.sources.py_spy import read_py_spy
from tests.diagnose.cases import texts, verdict

TABLE = """\
Mon Nov  3 07:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |
| N/A   34C    P0              61W / 400W |   73728MiB / 81920MiB |      0%      Default |
|   1  NVIDIA A100-SXM4-80GB          On  |   00000000:0B:00.0 Off |                    0 |
| N/A   71C    P0             388W / 400W |   60000MiB / 81920MiB |     97%      Default |
+-----------------------------------------------------------------------------------------+
"""
CSV = """\
index, utilization.gpu [%], clocks.current.sm [MHz], clocks_throttle_reasons.active, ecc.errors.uncorrected.volatile.total
0, 100 %, 1410 MHz, 0x0000000000000000, 0
1, 98 %, 1380 MHz, 0x0000000000000000, [N/A]
0, 100 %, 1395 MHz, 0x0000000000000040, 2
1, 99 %, 705 MHz, 0x0000000000000040, [N/A]
"""
DMON = """\
# gpu     pwr  gtemp  mtemp     sm    mem   mclk   pclk  pviol  tviol
# Idx       W      C      C      %      %    MHz    MHz      %   bool
    0     388     84     80    100     60   1593   1410      0      0
    0     390     88     82    100     61   1593    900     10      1
    0       -     89     83    100     61   1593    885     20      1
"""
QUERY = """\
==============NVSMI LOG==============

Timestamp                                 : Mon Nov  3 07:00:00 2026
Attached GPUs                             : 2
GPU 00000000:19:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
        SW Thermal Slowdown               : Not Active
    FB Memory Usage
        Total                             : 81559 MiB
        Used                              : 78000 MiB
    BAR1 Memory Usage
        Total                             : 131072 MiB
        Used                              : 4 MiB
    Utilization
        Gpu                               : 98 %
    Temperature
        GPU Current Temp                  : 91 C
    GPU Power Readings
        Power Draw                        : 350.12 W
        Current Power Limit               : 700.00 W
    Clocks
        SM                                : 705 MHz
    Max Clocks
        SM                                : 1980 MHz
GPU 00000000:3B:00.0
    Clocks Event Reasons
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
    FB Memory Usage
        Total                             : 81559 MiB
        Used                              : N/A
    Clocks
        SM                                : 1980 MHz
"""


def device(text: str) -> Signals:
    found = read_nvidia_smi("x", text)
    assert found is not None
    return found.signals(None)


def look(tmp_path, **files: str) -> Diagnosis:
    paths = []
    for name, text in files.items():
        path = tmp_path / name
        path.write_text(text)
        paths.append(str(path))
    observation = read_files(paths, None).observation()
    return judge(observation, None, (), is_live=False, target=observation.target)


def test_the_table_adds_up_memory_and_takes_the_hottest_and_the_idlest():
    found = device(TABLE)
    assert found.last("device_memory_total") == 2 * 81920 * 2**20
    assert found.last("device_memory_reserved") == (73728 + 60000) * 2**20
    assert (found.last("gpu_temperature"), found.last("gpu_busy"), found.last("gpu_power")) == (71, 0, 449)


def test_csv_has_one_reading_per_moment_and_says_why_clocks_are_low():
    found = device(CSV)
    assert found.gauges["gpu_sm_clock"].values == (1380e6, 705e6)
    assert found.gauges["gpu_throttle_hw_thermal"].values == (0, 1)
    assert found.gauges["gpu_throttle_power_brake"].values == (0, 0)
    assert found.delta("gpu_ecc_uncorrected") == 2


def test_csv_without_an_index_is_one_gpu_per_line():
    found = device("utilization.gpu [%], memory.used [MiB]\n5 %, 1000 MiB\n9 %, 1010 MiB\n")
    assert found.gauges["gpu_busy"].values == (0.05, 0.09)


def test_a_query_s_report_is_one_moment_of_all_gpus():
    found = device(QUERY)
    assert found.last("device_memory_total") == 2 * 81559 * 2**20
    assert found.last("device_memory_reserved") == 78000 * 2**20, "that of the address window is another memory"
    assert (found.last("gpu_sm_clock"), found.last("gpu_sm_clock_limit")) == (705e6, 1980e6)
    assert (found.last("gpu_throttle_hw_thermal"), found.last("gpu_throttle_sw_thermal")) == (1, 0)
    assert found.last("gpu_temperature") == 91
    again = QUERY.replace("705 MHz", "600 MHz")
    assert device(QUERY + again).gauges["gpu_sm_clock"].values == (705e6, 600e6)


def test_dmon_skips_what_it_has_no_figure_for():
    found = device(DMON)
    assert found.gauges["gpu_power"].values == (388, 390)
    assert found.gauges["gpu_sm_clock"].values == (1410e6, 900e6, 885e6)
    assert found.gauges["gpu_throttle_sw_thermal"].values == (0, 1, 1)


@pytest.mark.parametrize(
    ("text", "expected"), [(DMON, "supported"), (CSV, "supported"), (QUERY, "supported"), (TABLE, "undetermined")]
)
def test_heat_is_evidence_whoever_prints_it(tmp_path, text, expected):
    assert verdict(look(tmp_path, smi=text), "device_degraded") == expected


def test_reserved_memory_alone_is_no_exhaustion(tmp_path):
    diagnosis = look(tmp_path, smi=TABLE)
    assert (verdict(diagnosis, "expected_reservation"), verdict(diagnosis, "kv_exhaustion")) == ("undetermined",) * 2
    assert "82 % of device memory is reserved" in texts(diagnosis, "expected_reservation")
    assert diagnosis.exit_code == 3


DUMP = """\
Process 4121: VLLM::EngineCore
Python v3.12.3 (/usr/bin/python3.12)

Thread 4121 (idle): "MainThread"
    wait (threading.py:355)
    get (queue.py:180)
    wait_for_work (vllm/v1/engine/core.py:700)
    run_busy_loop (vllm/v1/engine/core.py:712)
    run_engine_core (vllm/v1/engine/core.py:650)
Thread 4190 (idle): "Thread-1"
    wait (threading.py:359)
    run (tqdm/_monitor.py:60)
"""


def test_a_dump_says_what_the_engine_s_loop_does(tmp_path):
    found = read_py_spy("x", DUMP)
    assert found is not None
    assert [event.detail for event in found.told] == [
        "thread MainThread (idle, engine) is waiting: wait (threading.py:355)"
    ]
    line = (
        "INFO 11-03 07:{:02}:{:02} [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: "
        "0.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache usage: 9.0%, Prefix cache hit rate: 0.0%"
    )
    log = "\n".join(line.format(n // 6, n % 6 * 10) for n in range(5))
    diagnosis = look(tmp_path, dump=DUMP, log=log)
    assert verdict(diagnosis, "engine_hung") == "supported"
    assert "thread MainThread (idle, engine) is waiting" in texts(diagnosis, "engine_hung")


def test_what_has_the_name_and_no_content(tmp_path):
    with pytest.raises(SourceError, match="without a GPU in it"):
        look(tmp_path, smi="# gpu     pwr  gtemp\n# Idx       W      C\n")


BENCH = """\
============ Serving Benchmark Result ============
Successful requests:                     100
Benchmark duration (s):                  50.00
Mean TTFT (ms):                          {ttft}
Median TTFT (ms):                        {ttft}
P99 TTFT (ms):                           {ttft}
Mean TPOT (ms):                          20.00
Mean ITL (ms):                           {itl}
P99 ITL (ms):                            {itl}
==================================================
"""


def page(n: int) -> str:
    """A hundred first tokens within 0.5 s and a thousand gaps of 20 to 25 ms per page."""
    lines = [f"vllm:generation_tokens_total {1000 * n}", "vllm:num_requests_running 4", "vllm:num_requests_waiting 0"]
    for metric, bounds, count in (
        ("vllm:time_to_first_token_seconds", ("0.25", "0.5", "+Inf"), 100 * n),
        ("vllm:inter_token_latency_seconds", ("0.02", "0.025", "+Inf"), 1000 * n),
    ):
        lines += [f'{metric}_bucket{{le="{bound}"}} {0 if not at else count}' for at, bound in enumerate(bounds)]
        lines += [f"{metric}_sum {0.02 * count}", f"{metric}_count {count}"]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("ttft", "expected"), [("4000.00", "supported"), ("400.00", "refuted")])
def test_a_benchmark_s_result_is_what_the_clients_report(tmp_path, ttft, expected):
    diagnosis = look(tmp_path, a=page(0), b=page(1), bench=BENCH.format(ttft=ttft, itl="23.00"))
    assert verdict(diagnosis, "client_artifact") == expected
    assert "clients report ttft_p99" in texts(diagnosis, "client_artifact")


def test_messages_of_several_tokens_are_no_late_tokens(tmp_path):
    diagnosis = look(tmp_path, a=page(0), b=page(1), bench=BENCH.format(ttft="400.00", itl="168.00"))
    assert verdict(diagnosis, "client_artifact") == "refuted"
    assert "itl_p99" not in texts(diagnosis, "client_artifact")
