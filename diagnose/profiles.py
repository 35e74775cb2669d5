"""Takes traces into the signals, the complete ones. An incomplete one is named with its defects, and no verdict rests on it."""

from diagnose.kernel_profile import KernelProfile
from diagnose.observation import Observation
from diagnose.policy import Policy
from diagnose.profile_completeness import incomplete_because
from diagnose.profile_steps import step_records, unknown_phases
from diagnose.signals import Signals


def use_profiles(observation: Observation, signals: Signals, policy: Policy) -> list[str]:
    """Warnings for the report. Steps of the lowest rank stand for the engine's where it gave no records of its own."""
    signals.is_traced = bool(observation.profiles)
    warnings: list[str] = []
    complete: list[KernelProfile] = []
    for profile in observation.profiles:
        defects = incomplete_because(profile, policy)
        if defects:
            warnings.append(f"{profile.name}: incomplete profile, not used: {'; '.join(defects)}")
        else:
            complete.append(profile)
    complete.sort(key=lambda profile: -1 if profile.rank is None else profile.rank)
    signals.profiles = tuple(complete)
    if complete and not signals.steps:
        _use_steps(complete[0], signals, warnings)
    return warnings


def _use_steps(profile: KernelProfile, signals: Signals, warnings: list[str]) -> None:
    signals.steps = tuple(step_records(profile))
    signals.steps_source = profile.name
    if signals.length_seconds is None and not signals.num_scrapes:
        signals.length_seconds = profile.length_seconds
        warnings.append(
            f"{profile.name}: tokens are timed by the end of their step on the device; what the host takes to hand them out is "
            "not in a trace"
        )
    unknown = unknown_phases(profile)
    if unknown:
        warnings.append(
            f"{profile.name}: {unknown} of {len(profile.steps)} steps tell neither by their annotation nor by their kernels "
            "whether they decode; gaps across them are left out"
        )
