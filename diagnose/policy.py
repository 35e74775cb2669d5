"""Every threshold of the method, each with its reason. Rules hold no numbers of their own."""

from dataclasses import dataclass, fields
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Policy:
    slow_gap_factor: float = 2.0
    """An inter-token gap is a stall from twice its decode floor: below that a reader cannot tell it from jitter."""

    material_stall_share: float = 0.10
    """Stalls matter from a tenth of the decode time: under it no fix of theirs could speed streams up by more than 10 %."""

    shift_ratio: float = 1.3
    """A median counts as shifted against the baseline from 30 %: shared hosts alone move medians by up to 20 %."""

    mixed_slow_ratio: float = 1.5
    """Mixed steps are much slower than like decode steps from 1.5x: a chunk that costs half a decode step is felt."""

    mixed_alike_ratio: float = 1.1
    """Within 10 % of like decode steps mixed steps are no slower: that is the usual error of the decode fit."""

    dominant_share: float = 0.5
    """A cause accounts for most of an excess from half of it."""

    negligible_share: float = 0.10
    """Under a tenth of the excess a cause is refuted as the cause, and never primary."""

    incomplete_other_share: float = 0.10
    """With more than a tenth of the excess unexplained the account is incomplete and names no primary."""

    overbooked_share: float = 0.05
    """Records that book a twentieth more time than went by overlap their parts: the account then shows shares, not times."""

    min_dose_range: float = 1.5
    """A dose response needs doses that differ by half: chunks of one size only order the noise."""

    dose_correlation: float = 0.5
    """Step time follows the dose from a rank correlation of a half: chance alone stays below it from a dozen chunks on."""

    min_context_range: float = 1.2
    """What context costs a step shows in contexts that differ by a fifth: steady ones leave it to the fit's constant part."""

    contended_slowdown: float = 1.25
    """From 1.25x elapsed over CPU time in ordinary decode steps the machine is contended, and the report says so."""

    min_decode_steps: int = 10
    """The decode floor is fitted from at least ten pure decode steps: three unknowns, and room for outliers."""

    min_mixed_steps: int = 5
    """Fewer mixed steps than five are anecdotes."""

    min_finished_prefills: int = 3
    """A mean prompt length from fewer than three prefills is a third off when one of them straddles the window's edge."""

    min_p99_gaps: int = 200
    """A p99 of fewer than two hundred gaps rests on one or two values; a warning says so."""

    host_share_high: float = 0.30
    """Host work delays tokens noticeably from 30 % of the gap: the device idles a third of the time."""

    flat_decode_ratio: float = 1.3
    """Pure decode steps are flat while their p95 is within 30 % of their median."""

    bandwidth_near_ceiling: float = 0.70
    """Streaming kernels reach 70-90 % of the measured read bandwidth; from 70 % the memory bus is the limit."""

    bandwidth_far_ceiling: float = 0.40
    """Under 40 % of the ceiling the memory bus cannot be what limits the step."""

    reading_rate_kept: float = 0.75
    """A step that reads more and keeps three quarters of its rate takes longer because of what it reads: paged caches stream a
    little worse than weights."""

    context_share_high: float = 0.25
    """KV reads shape the decode step from a quarter of its time."""

    memory_high: float = 0.80
    """Device memory is 'high' from 80 % reserved: where alerts of the field begin to fire."""

    pool_exhausted: float = 0.90
    """Active blocks at 90 % of the pool leave no room for one more ordinary prompt."""

    pool_well_below: float = 0.85
    """A pool whose active peak stays under 85 % was not exhausted in the window."""

    pool_low: float = 0.50
    """Reservation explains high memory when active blocks are under half of the pool."""

    hung_seconds: float = 30.0
    """A window without a single step while work is present calls an engine hung from 30 s: longer than any sane step."""

    storm_preemptions_per_request: float = 0.2
    """Preemptions are a storm from one per five finished requests: more than bad luck of the youngest."""

    storm_recompute_share: float = 0.10
    """Or from a tenth of all computed prompt tokens computed again."""

    compute_near_ceiling: float = 0.70
    """Dense kernels reach 70-80 % of the measured matrix throughput; from 70 % the units are the limit."""

    compute_far_ceiling: float = 0.40
    """Under 40 % of the measured matrix throughput the units cannot be what limits the step."""

    throttled_share: float = 0.05
    """Clocks held down for a twentieth of the window show in its p95; for less, in no percentile that is watched."""

    clock_drop_share: float = 0.15
    """Clocks under like load vary by a tenth with temperature and power; 15 % below the baseline something holds them down."""

    gpu_busy_share: float = 0.5
    """A GPU that is idle half of the time lowers its clocks by itself: only clocks of busier windows compare."""

    cache_was_useful: float = 0.2
    """A prefix cache earned its keep from a fifth of the prompt tokens found."""

    cache_broke_ratio: float = 0.5
    """It broke when less than half of the baseline's hit rate is left under reuse that had been steady."""

    min_prefix_tokens: int = 1000
    """Fewer looked-up prompt tokens than a thousand say nothing of a hit rate."""

    thrash_ghost_share: float = 0.20
    """A fifth of the evicted blocks asked for again: eviction undoes work that it should have kept."""

    thrash_negligible_share: float = 0.02
    """Of old content a few blocks always come back; under one in fifty the pool gave up the right ones."""

    hit_rate_high: float = 0.80
    """With four of five prompt tokens found, a cache keeps what is asked for: thrashing would find next to nothing."""

    queue_dominates: float = 0.50
    """Queueing dominates the first token from half of its time."""

    queue_small: float = 0.20
    """Under a fifth of the time to first token the queue is not what delays it."""

    acceptance_high: float = 0.60
    """From six accepted draft tokens in ten, speculation emits more tokens per step than its drafts cost."""

    acceptance_fell: float = 0.50
    """Acceptance varies with the text; half of the baseline's is more than that."""

    min_draft_tokens: int = 500
    """An acceptance of 50 % is known to within five points from 400 drafts on."""

    client_factor: float = 2.0
    """Clients and engine differ by network and framing; twice the engine's own quantile is neither."""

    min_reported_samples: int = 100
    """The engine's p99 rests on one gap in a hundred."""

    replica_factor: float = 2.0
    """Random routing leaves replicas within a factor of two of each other at any load worth looking at."""

    min_load_lines: int = 2
    """A level of one line is a moment; two periodic lines are 5 to 10 s apart, and what holds at both is no moment."""

    min_flat_lines: int = 3
    """Running requests that reach the same number while others wait: twice is chance, three times is a limit."""

    forecast_seconds: float = 600.0
    """A pool's growth foretells ten minutes at most: after that it is another load."""

    first_step_seconds: float = 300.0
    """A first request may wait for kernels or a grammar to be compiled: from five minutes no sane server does that."""

    noticeable_queue_seconds: float = 0.1
    """A queue shorter than 100 ms is not felt by a person waiting for a first token."""

    missing_scrape_ratio: float = 2.5
    """A scrape is missing from two and a half times the usual interval: a late one comes within twice of it."""

    min_scrape_intervals: int = 4
    """What interval is usual shows from four of them."""

    unseen_share: float = 0.10
    """What no scrape saw for a tenth of the window may have happened there: that is as long as stalls that matter."""

    clock_jump_seconds: float = 5.0
    """Two clocks may differ by the 5 s that an answer is waited for; a clock that differs by more was set."""

    contradiction_share: float = 0.25
    """Two sources of one target disagree from a quarter: less is what moments of reading that differ by a step make."""

    matched_arrivals: float = 0.10
    """Arms are offered the same load while arrivals differ by under a tenth: half of what `shift_ratio` takes for noise."""

    edge_arrivals: int = 1
    """One more arrival may fall into either window by where its edges lie; under ten arrivals that exceeds a tenth."""

    matched_context: float = 0.20
    """Contexts within a fifth: even where KV reads are half of a decode step, the step then differs by a tenth."""

    matched_hit_rate: float = 0.05
    """Five points of hit rate: at 50 % that is a tenth of the prompt tokens left to compute, the tolerance of arrivals."""

    matched_error_rate: float = 0.02
    """Failed requests are fast or absent: two points more of them in one arm move its quantiles."""

    matched_others: float = 0.10
    """Traffic of other clients is load as any other: the tolerance of arrivals, as a share of what the target served."""

    matched_pool: float = 0.02
    """An engine that takes what memory is left finds some blocks more or fewer at each start: up to a fiftieth is no setting."""

    matched_speed: float = 0.15
    """Shared hosts change speed in steps of a fifth and more; jitter of the speed index stays well within a seventh."""

    client_late_sends: float = 0.05
    """A client that sends more than one request in twenty late offers another load than the planned one."""

    client_lag: float = 0.25
    """Of the median gap: a client whose own loop wakes later than that (p99) measures itself."""
    profile_unclassified_share: float = 0.10
    """A profile with more than a tenth of its device time in kernels of unknown names may hide any cause there."""

    profile_lost_share: float = 0.01
    """One launch in a hundred without its kernel: a layer has about ten, so that every tenth layer would lack one."""

    profile_odd_steps_share: float = 0.05
    """Steps with fewer KV writes than layers, or without kernels: beyond the cut ones at the edges, one in twenty is a defect."""

    profile_unattached_share: float = 0.10
    """Device time outside of every step: more than a tenth and the steps are not what ran."""

    profile_kernels_per_layer: int = 4
    """A layer takes at least two matrix products, attention and a KV write, however much is fused; fewer are missing."""

    comm_share_high: float = 0.20
    """Collectives hold the device noticeably from a fifth of its time: over NVLink a tuned group stays under a tenth."""

    leak_least_share: float = 0.001
    """A thousandth of the pool: engines keep a block or two for themselves, which some count as used."""

    reading_share_low: float = 0.20
    """Kernels that read weights and cache, under a fifth of all kernel time: even where others overlap them whole, the memory
    bandwidth holds at most a quarter of the time."""

    rank_skew_share: float = 0.10
    """Ranks wait for the slowest one from a tenth of the step: what balancing the ranks would win."""

    frontend_busy_share: float = 0.80
    """A thread is busy from four fifths of a core: beyond it a queue before it grows fast, as before any server."""

    frontend_free_share: float = 0.50
    """A thread that is on a core for under half of the time can still serve twice as much."""

    min_frontend_samples: int = 100
    """One stall of a front end delays dozens of hand-outs together: fewer than a hundred tell of one or two of them."""

    frontend_delay_high: float = 1.0
    """Of the gap between tokens: a front end that takes tokens up later than the next ones are made does not keep up."""

    frontend_delay_low: float = 0.25
    """A quarter of a gap is as much as networks and clients move tokens about."""

    frontend_felt_seconds: float = 0.03
    """A front end is felt from 30 ms: shorter pauses between words are no pauses to a reader."""

    frontend_unfelt_seconds: float = 0.01
    """Two turns of the interpreter lock, of 5 ms each: any front end in one process with its engine may be as late as that."""

    engine_starved_share: float = 0.30
    """The engine's loop starves noticeably when it waits for input for three tenths of the time."""

    host_delay_high: float = 0.10
    """Threads that wait for a core for a tenth of the time share the machine with too many others."""

    comparison_block_seconds: float = 5.0
    """Blocks longer than the stalls in them, so that a stall's gaps stay together; blocks, not gaps, are independent."""

    min_comparison_blocks: int = 6
    """An interval from fewer than six blocks is one of the few values that they can be reshuffled to."""


DEFAULT_POLICY = Policy()


class Override(NamedTuple):
    name: str
    value: float
    default: float


def overridden(policy: Policy) -> list[Override]:
    """Where a policy differs from the documented one: every report says so."""
    pairs = [(f.name, getattr(policy, f.name), getattr(DEFAULT_POLICY, f.name)) for f in fields(Policy)]
    return [Override(name, value, default) for name, value, default in pairs if value != default]


RATIOS = (
    "slow_gap_factor",
    "shift_ratio",
    "mixed_slow_ratio",
    "mixed_alike_ratio",
    "min_dose_range",
    "min_context_range",
    "contended_slowdown",
    "flat_decode_ratio",
    "missing_scrape_ratio",
    "client_factor",
    "replica_factor",
)
"""Thresholds that are multiples of something ordinary, so at least 1. Others are shares (0 to 1), counts or seconds."""

ORDERED = (
    ("mixed_alike_ratio", "mixed_slow_ratio"),
    ("negligible_share", "dominant_share"),
    ("bandwidth_far_ceiling", "bandwidth_near_ceiling"),
    ("compute_far_ceiling", "compute_near_ceiling"),
    ("thrash_negligible_share", "thrash_ghost_share"),
    ("frontend_free_share", "frontend_busy_share"),
    ("frontend_delay_low", "frontend_delay_high"),
    ("frontend_unfelt_seconds", "frontend_felt_seconds"),
    ("pool_low", "pool_well_below"),
    ("pool_well_below", "pool_exhausted"),
    ("queue_small", "queue_dominates"),
)
"""Pairs between which a rule is undetermined: crossed, it would support and refute the same figure."""
