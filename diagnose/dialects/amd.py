"""AMD's device-metrics-exporter: what it says of GPUs, beside an engine's own page."""

from diagnose.dialects.base import Combine, Dialect, alias

_MIB = float(1 << 20)
_ANY_KERNEL = "any kernel counts: near 1 in decode whatever binds"

AMD = Dialect(
    name="amd exporter",
    prefixes=("gpu_gfx_", "gpu_umc_", "gpu_total_vram", "gpu_package_power"),
    gauges={
        "gpu_busy": (alias("gpu_gfx_activity", factor=0.01, combine=Combine.MAX, coverage=_ANY_KERNEL),),
        "gpu_dram_active": (
            alias(
                "gpu_umc_activity",
                factor=0.01,
                combine=Combine.MAX,
                coverage="share of time the memory interface was busy",
            ),
        ),
        "gpu_memory_used": (
            alias(
                "gpu_used_vram",
                factor=_MIB,
                coverage="constant with a pool allocated at start: it says nothing of its use",
            ),
        ),
        "device_memory_total": (alias("gpu_total_vram", factor=_MIB),),
        "device_memory_reserved": (alias("gpu_used_vram", factor=_MIB),),
        "gpu_power": (alias("gpu_package_power"), alias("gpu_average_package_power")),
        "gpu_sm_clock": (alias("gpu_clock", factor=1e6, combine=Combine.MAX),),
    },
    cannot={
        "steps": "a device exporter knows no steps: give the engine's metrics or log beside it",
        "host": "tensor activity needs the profiler fields (GPU_PROF_*), which are off by default",
    },
    is_engine=False,
)
