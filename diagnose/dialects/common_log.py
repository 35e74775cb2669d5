"""Lines that mean the same in any engine's log: the runtime's own (allocator, collectives, interpreter, kernel), and what
Kubernetes says of a container that it ended."""

import re

from diagnose.dialects.log import EventLine, LogTable

COMMON_LOG = LogTable(
    engine="any engine",
    events=(
        EventLine("out_of_memory", "CUDA out of memory"),
        EventLine("out_of_memory", "HIP out of memory"),
        EventLine("out_of_memory", "torch.OutOfMemoryError"),
        EventLine("out_of_memory", "torch.cuda.OutOfMemoryError"),
        EventLine("out_of_memory", "CUBLAS_STATUS_ALLOC_FAILED"),
        EventLine("out_of_memory", "cudaErrorMemoryAllocation"),
        EventLine("out_of_memory", "Out of memory: Killed process"),
        EventLine("out_of_memory", "out of memory: Killed process"),
        EventLine("out_of_memory", "OOMKilled"),
        EventLine("collective_timeout", "Watchdog caught collective operation timeout"),
        EventLine("out_of_memory", "trying to allocate", re.compile(r"trying to allocate \d+ bytes \(free: \d+")),
        EventLine("collective_timeout", "Some NCCL operations have failed or timed out"),
        EventLine("collective_failed", "NCCL error"),
        EventLine("engine_dead", "Segmentation fault"),
        EventLine("engine_dead", "Fatal Python error:"),
        EventLine("device_error", "CUDA error:", re.compile(r"CUDA error: (?!out of memory)")),
        EventLine("device_error", "NVRM: Xid"),
    ),
)
