"""What the person who asks knows of the target and the target does not say: its devices and its model's geometry."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from diagnose.hardware import Devices
from diagnose.signals import Gauge, Signals


@dataclass(frozen=True, slots=True)
class Supplement:
    devices: Devices | None = None
    model: Mapping[str, str] = field(default_factory=dict)
    """Labels as `engine_info` has them."""

    def add_to(self, signals: Signals) -> list[str]:
        """Fills in what is missing. What the target states or measured itself stands; contradictions are returned as warnings."""
        if self.devices is not None:
            source = f"datasheet of {self.devices}"
            signals.gauges.setdefault("bandwidth_ceiling", Gauge((self.devices.bandwidth,), source))
            signals.gauges.setdefault("flops_ceiling", Gauge((self.devices.flops,), source))
        stated = {name: value for name, value in signals.info.items() if value}
        contradicted = [name for name, value in self.model.items() if stated.get(name, value) != value]
        signals.info = {**self.model, **stated}
        return [
            f"{name}: the target says {stated[name]}, --model-config {self.model[name]}; the target's is used"
            for name in contradicted
        ]
