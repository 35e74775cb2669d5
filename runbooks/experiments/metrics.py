"""What is measured of a block."""

from typing import NamedTuple


class Metric(NamedTuple):
    name: str
    unit: str
    """s, 1/s or share."""
    lower_is_better: bool
    text: str


METRICS = {
    metric.name: metric
    for metric in (
        *(Metric(f"itl_p{q}", "s", True, f"ITL p{q}") for q in (50, 95, 99)),
        *(Metric(f"ttft_p{q}", "s", True, f"TTFT p{q}") for q in (50, 95, 99)),
        Metric("throughput", "1/s", False, "output tokens/s"),
        Metric("goodput", "1/s", False, "goodput (req/s)"),
    )
}
