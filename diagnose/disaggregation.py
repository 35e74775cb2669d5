"""What has to be known before prefill and decode are given processes of their own, and what of it this window holds.

No verdict and no rule on a link's speed (lesson section 6): whether separate instances pay depends on the lengths of the
sequences, on where the instances stand, on what of the transfer is overlapped and on what is saved. All of it is analytical.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from diagnose.case import Case
from diagnose.chunking import typical_prompt
from diagnose.hypotheses.prefill_work import prefill_work
from diagnose.signals import Signals
from diagnose.units import percent, seconds
from probes.arithmetic import ByteRate, ideal_payload_time, kv_payload, plan_chunks, required_transfer_rate
from probes.kv_stream import stream_timeline


class Placement(StrEnum):
    INTRA_RACK = "intra-rack"
    CROSS_RACK = "cross-rack"


class Shared(NamedTuple):
    """What separate instances still share."""

    name: str
    measured: str
    """Empty where nothing in the window measured it."""
    measure: str
    """What would, on both sides."""

    def __str__(self) -> str:
        return f"{self.name}: {self.measured or 'untested'}"


def still_shared(signals: Signals) -> tuple[Shared, ...]:
    """The interference that disaggregation does not remove: untested unless measured."""
    dram = signals.gauges.get("gpu_dram_active")
    bus = "" if dram is None else f"DRAM active {percent(dram.mean)} of the time (n={len(dram.values)}, {dram.source})"
    return (
        Shared("switch contention", "", "ECN marks and pause frames on the switch's ports"),
        Shared("NIC queueing", "", "ethtool -S INTERFACE | grep -iE 'pause|discard|drop'"),
        Shared("memory bus", bus, "DRAM active of both GPUs: a DCGM exporter's URL beside the target's"),
    )


@dataclass(frozen=True, slots=True)
class Stated:
    """What the person who asks knows; None where they do not say."""

    prompt_tokens: int | None = None
    """To compute, without what a prefix cache holds."""
    output_tokens: int | None = None
    prefill_rate: float | None = None
    """Prompt tokens per second that one prefill instance computes."""
    placement: Placement | None = None
    link: ByteRate | None = None
    chunk_tokens: int | None = None
    """KV is sent per computed chunk of so many tokens; 0: all of it after the prefill."""
    bytes_per_token: int | None = None
    """KV of one token in all layers."""
    cost_saved: float | None = None
    """Share of the hardware's cost that specialised instances save."""


class Input(NamedTuple):
    name: str
    known: str
    """Empty where it is missing."""
    ask: str
    """The option that states it, or where it comes from."""


@dataclass(frozen=True, slots=True)
class Advice:
    inputs: tuple[Input, ...]
    arithmetic: tuple[str, ...]
    observed: tuple[str, ...]
    """What the window shows of the two costs that are weighed: stalls today, transfers where there are any."""
    shared: tuple[Shared, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(found.name for found in self.inputs if not found.known)

    @property
    def headline(self) -> str:
        if self.missing:
            return (
                f"no verdict: {len(self.missing)} of {len(self.inputs)} inputs are missing: {', '.join(self.missing)}"
            )
        return (
            "no verdict from these figures: they weigh a trade, and only both layouts under the same load decide it "
            "(TTFT, ITL and cost side by side)"
        )


def advise(stated: Stated, case: Case | None) -> Advice:
    """From what is stated and, where there is one, what a window of the target shows. What is stated wins."""
    known = stated if case is None else _completed(stated, case)
    chunk, saved = known.chunk_tokens, known.cost_saved
    overlap = (
        "" if chunk is None else f"KV is sent per chunk of {chunk:,} tokens" if chunk else "none: KV after the prefill"
    )
    inputs = (
        Input("sequence lengths", _lengths(known), "--prompt-tokens N --output-tokens N, or a recording of the target"),
        Input("placement", _placement(known), f"--placement {' | '.join(Placement)}"),
        Input("overlap", overlap, "--overlap CHUNK_TOKENS, or --overlap none"),
        Input(
            "cost saved",
            "" if saved is None else f"{percent(saved)} of the hardware's cost",
            "--cost-saved 20%: what prefill and decode instances of their own kinds save",
        ),
    )
    arithmetic = [*_sent(known, None if case is None else case.signals.rate("tokens_prefill")), *_moved(known)]
    if known.bytes_per_token is None:
        arithmetic = [
            "KV bytes per token are not known: --model-config config.json, or a target that states its geometry"
        ]
    shared = still_shared(case.signals if case is not None else Signals("", None, 0))
    return Advice(inputs, tuple(arithmetic), tuple(_observed(case)), shared)


def _completed(stated: Stated, case: Case) -> Stated:
    """With the means of the window where nothing is stated."""
    per_token = case.signals.number("kv_bytes_per_token")
    return replace(
        stated,
        prompt_tokens=stated.prompt_tokens or _mean_prompt(case),
        output_tokens=stated.output_tokens or _mean_output(case.signals),
        bytes_per_token=round(per_token) if per_token else stated.bytes_per_token,
    )


def _mean_prompt(case: Case) -> int | None:
    typical, work = typical_prompt(case.analysis, case.policy), prefill_work(case.signals)
    if typical is not None:
        return typical.tokens
    return round(work[0]) if work is not None else None


def _mean_output(signals: Signals) -> int | None:
    """Of requests that finished in the window; those that overlap its edges make it a rough mean."""
    tokens, finished = signals.delta("tokens_decode"), signals.delta("requests_finished")
    return round(tokens / finished) if tokens and finished else None


def _lengths(known: Stated) -> str:
    if not known.prompt_tokens or not known.output_tokens:
        return ""
    return f"{known.prompt_tokens:,} prompt tokens to compute and {known.output_tokens:,} output tokens a request"


def _placement(stated: Stated) -> str:
    if stated.placement is None:
        return ""
    link = "" if stated.link is None else f", {stated.link.gigabits_per_second:g} Gb/s"
    return f"{stated.placement.value}{link}"


def _sent(known: Stated, window_rate: float | None) -> list[str]:
    """The rate at which KV leaves where prompts are computed. Compared with no threshold."""
    rate, of = (
        (window_rate, "the window's mean; bursts send more") if known.prefill_rate is None else (known.prefill_rate, "")
    )
    if not rate or known.bytes_per_token is None:
        return []
    needed = required_transfer_rate(known.bytes_per_token, rate)
    return [
        f"{rate:,.0f} prompt tokens/s{f' ({of})' if of else ''} send {needed.gigabytes_per_second:.4g} GB/s = "
        f"{needed.gigabits_per_second:.4g} Gb/s of KV: over a slower path transfers queue up"
    ]


def _moved(known: Stated) -> list[str]:
    """A prompt's payload and its ideal time: bounds from below, with what they leave out."""
    prompt, per_token, link = known.prompt_tokens, known.bytes_per_token, known.link
    if not prompt or per_token is None:
        return []
    payload = kv_payload(prompt, per_token)
    lines = [f"a prompt's KV: {prompt:,} tokens x {per_token:,} B = {payload:,} B ({payload.mebibytes:,.4g} MiB)"]
    if link is None:
        return lines
    lines.append(f"over {link.gigabits_per_second:g} Gb/s: {ideal_payload_time(payload, link)}")
    if not known.chunk_tokens:
        return lines
    if known.prefill_rate is None:
        return [*lines, "what overlap hides depends on a prefill instance's speed: --prefill-rate TOKENS_PER_SECOND"]
    sizes = plan_chunks(prompt, 0, known.chunk_tokens)
    computes = [size / known.prefill_rate for size in sizes]
    timeline = stream_timeline(sizes, computes, bytes_per_token=per_token, link=link)
    first = timeline.chunks[0]
    sending, exposed = seconds(first.transferred - first.transfer_start), seconds(timeline.exposed_seconds)
    return [
        *lines,
        f"sent per chunk ({len(sizes)} of up to {sizes[0]:,} tokens, {seconds(computes[0])} to compute and "
        f"{sending} to send): at least {exposed} of the transfer come after the prefill (analytical)",
    ]


def _observed(case: Case | None) -> list[str]:
    if case is None:
        return []
    lines = []
    share, excess = case.stall_share(), case.excess()
    if share is not None and excess is not None:
        cause = (
            f"{percent(excess.share('prefill'))} of their excess is co-scheduled prefill" if case.has_stalls() else ""
        )
        lines.append(
            f"today stalls hold {percent(share)} of the decode time (n={case.analysis.num_gaps} gaps)"
            + (f", and {cause}" if cause else "")
        )
    transfer = case.signals.histograms.get("kv_transfer")
    if transfer is not None and transfer.mean:
        lines.append(
            f"measured transfers: {seconds(transfer.mean)} on average (n={transfer.count:.0f}, {transfer.source})"
        )
    return lines
