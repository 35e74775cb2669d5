"""What the engine says of its GPU: in the metrics, and with reasons at /debug/gpu."""

from probes.gpu import GpuReading, GpuSample, GpuState, ThrottleReason
from probes.gpu_monitor import GpuMonitor
from tests.engine.http_server import http_server, wait_until

HOT = GpuSample(
    index=0,
    uuid="GPU-a",
    name="Fake",
    throttle=frozenset({ThrottleReason.SW_THERMAL, ThrottleReason.HW_THERMAL}),
    process_memory_bytes={7: None},
    missing={"power_watts": "Not Supported"},
)
LOST = GpuSample(index=0, uuid="GPU-a", name="Fake", state=GpuState.LOST, missing={"state": "GPU is lost"})


class Gpu:
    """A probe whose GPU is as the test says."""

    def __init__(self) -> None:
        self.sample_now = HOT
        self.closed = False

    def sample(self) -> GpuReading:
        return GpuReading((self.sample_now,))

    def close(self) -> None:
        self.closed = True


def test_a_gpu_is_watched_while_the_server_runs_and_serving_outlives_its_loss():
    probe = Gpu()
    with http_server(gpu=GpuMonitor(probe, interval_seconds=0.01)) as (client, _):
        wait_until(lambda: client.get("/debug/gpu")[1]["gpus"])
        status, answer = client.get("/debug/gpu")
        assert (status, answer["reason"]) == (200, None)
        (gpu,) = answer["gpus"]
        assert gpu["throttle"] == ["hw_thermal", "sw_thermal"]
        assert (gpu["power_watts"], gpu["missing"]) == (None, {"power_watts": "Not Supported"})
        assert 'stallscope_gpu_throttle{gpu="0",reason="hw_thermal",uuid="GPU-a"} 1.0' in client.get("/metrics")[1]
        probe.sample_now = LOST
        wait_until(lambda: client.get("/debug/gpu")[1]["gpus"][0]["state"] == "lost")
        assert 'stallscope_gpu_lost{gpu="0",uuid="GPU-a"} 1.0' in client.get("/metrics")[1]
        assert client.get("/health")[0] == 200
    assert probe.closed


def test_on_the_cpu_there_is_none_and_the_reason():
    with http_server() as (client, _):
        assert client.get("/debug/gpu") == (200, {"gpus": [], "reason": "the engine runs on the CPU"})
        assert "\nstallscope_gpu_" not in client.get("/metrics")[1]
