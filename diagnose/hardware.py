"""Datasheet ceilings of accelerators, by the name that NVML or amd-smi gives them.

A ceiling that the engine measured on its own device comes first: kernels reach 70-90 % of a datasheet's bandwidth.
"""

import re
from dataclasses import dataclass

from diagnose.errors import SourceError


@dataclass(frozen=True, slots=True)
class Hardware:
    name: str
    bandwidth: float
    """Bytes per second, of one device."""
    flops: float
    """Dense bf16 (fp16 where the device has no bf16) with fp32 accumulation, per second."""
    pattern: str
    """Matches the device's name in lower case, without vendor and punctuation."""


# Vendors' datasheets; dense figures (the ones with sparsity are twice as high). More specific names come first.
HARDWARE = (
    Hardware("GH200", 4.0e12, 989e12, r"gh200"),
    Hardware("H200", 4.8e12, 989e12, r"h200"),
    Hardware("H100 NVL", 3.9e12, 835e12, r"h100 nvl"),
    Hardware("H100 PCIe", 2.0e12, 756e12, r"h100 pcie"),
    Hardware("H100 SXM", 3.35e12, 989e12, r"h100"),
    Hardware("H20", 4.0e12, 148e12, r"h20"),
    Hardware("B200", 8.0e12, 2250e12, r"b200"),
    Hardware("A100 80GB PCIe", 1.935e12, 312e12, r"a100 (80gb pcie|pcie 80gb)"),
    Hardware("A100 80GB SXM", 2.039e12, 312e12, r"a100.*80gb"),
    Hardware("A100 40GB", 1.555e12, 312e12, r"a100"),
    Hardware("A10G", 0.6e12, 70e12, r"a10g"),
    Hardware("A10", 0.6e12, 125e12, r"a10"),
    Hardware("A30", 0.933e12, 165e12, r"a30"),
    Hardware("L40S", 0.864e12, 362e12, r"l40s"),
    Hardware("L40", 0.864e12, 181e12, r"l40"),
    Hardware("L4", 0.3e12, 121e12, r"l4"),
    Hardware("T4", 0.32e12, 65e12, r"t4"),
    Hardware("V100", 0.9e12, 125e12, r"v100"),
    Hardware("RTX 5090", 1.792e12, 209e12, r"rtx 5090"),
    Hardware("RTX 4090", 1.008e12, 165e12, r"rtx 4090"),
    Hardware("RTX 3090", 0.936e12, 71e12, r"rtx 3090"),
    Hardware("MI355X", 8.0e12, 2300e12, r"mi355x"),
    Hardware("MI325X", 6.0e12, 1307e12, r"mi325x"),
    Hardware("MI300X", 5.3e12, 1307e12, r"mi300x"),
    Hardware("MI250X", 3.277e12, 383e12, r"mi250x"),
)

_COUNT = re.compile(r"^(\d+)\s*x\s+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Devices:
    """What one replica runs on."""

    hardware: Hardware
    count: int

    @property
    def bandwidth(self) -> float:
        return self.hardware.bandwidth * self.count

    @property
    def flops(self) -> float:
        return self.hardware.flops * self.count

    def __str__(self) -> str:
        return f"{self.count} x {self.hardware.name}" if self.count > 1 else self.hardware.name


def find_hardware(name: str) -> Hardware | None:
    words = " ".join(re.sub(r"nvidia|amd|instinct|geforce|tesla|[^\w]+", " ", name.lower()).split())
    return next((known for known in HARDWARE if re.search(rf"\b(?:{known.pattern})\b", words)), None)


def parse_devices(text: str) -> Devices:
    """`NVIDIA H100 80GB HBM3`, or `4x H100` for a replica over four of them. Raises SourceError that lists what is known."""
    count = _COUNT.match(text)
    name = text[count.end() :] if count else text
    hardware = find_hardware(name)
    number = int(count[1]) if count else 1
    if hardware is None or not number:
        known = ", ".join(known.name for known in HARDWARE)
        raise SourceError(f"--device {text!r}: no datasheet for it; known: {known}; several of one kind: '4x H100'")
    return Devices(hardware, number)
