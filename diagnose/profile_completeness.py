"""Whether a profile holds all that ran. Looked at before anything is read from it: what is missing looks like speed."""

from collections.abc import Iterator

from diagnose.kernel_profile import KernelProfile, ProfiledStep
from diagnose.policy import Policy
from diagnose.units import percent
from probes.kernel_patterns import KernelClass


def incomplete_because(profile: KernelProfile, policy: Policy) -> list[str]:
    """One sentence per defect; empty for a profile that verdicts may rest on."""
    defects = [f"the file is cut off after {profile.num_events:,} events"] if profile.is_cut_off else []
    if profile.num_unreadable:
        defects.append(f"{profile.num_unreadable:,} events have fields of a wrong type")
    if not profile.num_kernels:
        return [
            *defects,
            "it holds no device kernels: record with ProfilerActivity.CUDA as well as CPU"
            + (" (there are launches, so that the profiler dropped them)" if profile.num_launches else ""),
        ]
    return [*defects, *_missing_kernels(profile, policy), *_steps(profile, policy)]


def _missing_kernels(profile: KernelProfile, policy: Policy) -> Iterator[str]:
    if profile.num_lost_kernels > policy.profile_lost_share * profile.num_launches:
        share = profile.num_lost_kernels / profile.num_launches
        yield f"{percent(share)} of {profile.num_launches:,} launches have no kernel: the profiler dropped them"
    total = profile.device_ns
    unknown = profile.class_ns.get(KernelClass.UNCLASSIFIED, 0)
    if total and unknown > policy.profile_unclassified_share * total:
        names = ", ".join(profile.unclassified_ns)
        yield f"{percent(unknown / total)} of the device time is in kernels of unknown names: {names}"


def _steps(profile: KernelProfile, policy: Policy) -> Iterator[str]:
    if not profile.steps:
        yield (
            "no step is annotated: vLLM 0.12 and SGLang 0.5.12 or later mark steps; take the trace with their own "
            "/start_profile, not from outside"
        )
        return
    total = profile.device_ns
    if total and profile.unattached_ns > policy.profile_unattached_share * total:
        yield f"{percent(profile.unattached_ns / total)} of the device time belongs to no annotated step"
    whole = inner_steps(profile)
    if not whole:
        yield f"{len(profile.steps)} annotated steps: the first and the last may be cut, and no other is left"
        return
    empty = sum(step.num_kernels == 0 for step in whole)
    if empty > policy.profile_odd_steps_share * len(whole):
        yield f"{empty} of {len(whole)} steps have no kernels"
    yield from _layers(profile, [step for step in whole if step.num_kernels], policy)


def _layers(profile: KernelProfile, steps: list[ProfiledStep], policy: Policy) -> Iterator[str]:
    """Kernels per step against the layer count, which is the usual number of KV writes."""
    layers = profile.num_layers
    if layers is None or not steps:
        yield "no kernel writes the KV cache, so that the layers of a step cannot be counted"
        return
    short = [step.num_kv_writes for step in steps if step.num_kv_writes < layers]
    if len(short) > policy.profile_odd_steps_share * len(steps):
        yield (
            f"{len(short)} of {len(steps)} steps write the KV cache of fewer than {layers} layers (of {min(short)} in one): "
            "kernels are missing"
        )
    needed = policy.profile_kernels_per_layer * layers
    few = [step.num_kernels for step in steps if step.num_kernels < needed]
    if len(few) > policy.profile_odd_steps_share * len(steps):
        yield (
            f"{len(few)} of {len(steps)} steps have under {needed} kernels for {layers} layers (one has {min(few)}): "
            "matrix products or attention are missing"
        )


def inner_steps(profile: KernelProfile) -> list[ProfiledStep]:
    """Without the first and the last one, which the recording may have cut, and without dummy runs."""
    return [step for step in profile.steps[1:-1] if not step.span.is_dummy]
