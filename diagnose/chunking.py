"""What a token budget does to a prompt's steps: the frontier between many short steps and few long ones.

Arithmetic under PLAN_ASSUMPTIONS, not a prediction of time, and never a recommendation: smaller chunks cost iterations,
host time and a later first token, larger ones cost the decodes that are scheduled beside them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from diagnose.account import StepAnalysis
from diagnose.policy import Policy
from diagnose.stats import median
from diagnose.units import seconds
from probes.arithmetic import PLAN_ASSUMPTIONS, attention_pairs, plan_chunks


@dataclass(frozen=True, slots=True)
class FrontierRow:
    """A prompt's prefill under one token budget."""

    budget: int
    chunks: tuple[int, ...]
    """Empty when the decodes leave no budget; `blocked` says so."""
    blocked: str = ""

    @property
    def steps(self) -> int:
        return len(self.chunks)

    @property
    def history(self) -> tuple[int, ...]:
        """Positions read before each chunk's own."""
        return tuple(accumulate(self.chunks[:-1], initial=0)) if self.chunks else ()

    @property
    def history_positions(self) -> int:
        """All positions read again because the prompt was cut; 0 for a single chunk."""
        return sum(self.history)

    @property
    def pairs(self) -> tuple[int, ...]:
        """Query-key pairs of each step's chunk: they rise from step to step while the tokens stay the same."""
        return tuple(attention_pairs(start, chunk) for start, chunk in zip(self.history, self.chunks, strict=True))

    @property
    def worst_pairs(self) -> int:
        return max(self.pairs, default=0)

    @property
    def total_pairs(self) -> int:
        """The same for every budget: chunking moves attention, it does not save any."""
        return sum(self.pairs)


def chunk_frontier(prompt_tokens: int, active_decodes: int, budgets: Iterable[int]) -> tuple[FrontierRow, ...]:
    """A row per budget, in the order given. Raises ValueError for a budget <= 0 or a negative count."""
    rows = []
    for budget in budgets:
        try:
            rows.append(FrontierRow(budget, tuple(plan_chunks(prompt_tokens, active_decodes, budget))))
        except RuntimeError as error:  # the planner's word for "the decodes take the whole budget"
            rows.append(FrontierRow(budget, (), str(error)))
    return tuple(rows)


def frontier_lines(rows: Sequence[FrontierRow], host_seconds_per_step: float | None = None) -> list[str]:
    """The frontier as a table. With the host's time per step, also what the steps cost the host in all."""
    host_title = "" if host_seconds_per_step is None else f"{'host time':>11}"
    lines = [f"{'budget':>7}{'steps':>7}{'largest chunk':>15}{'worst step pairs':>18}{'history read':>14}{host_title}"]
    for row in rows:
        if row.blocked:
            lines.append(f"{row.budget:>7}  {row.blocked}")
            continue
        host = "" if host_seconds_per_step is None else f"{seconds(row.steps * host_seconds_per_step):>11}"
        lines.append(
            f"{row.budget:>7}{row.steps:>7}{max(row.chunks, default=0):>15,}{row.worst_pairs:>18,}"
            f"{row.history_positions:>14,}{host}"
        )
    lines.append(f"analytical, no times; assumes: {'; '.join(PLAN_ASSUMPTIONS)}")
    lines.append(
        "no row is best by itself: fewer steps bring the first token sooner, shorter steps keep the decodes going"
    )
    return lines


@dataclass(frozen=True, slots=True)
class TypicalPrompt:
    """The prompt work of a window: prompt tokens to compute per finished prefill, and the decodes beside them."""

    tokens: int
    active_decodes: int


def typical_prompt(analysis: StepAnalysis, policy: Policy) -> TypicalPrompt | None:
    """From step records; None when they cannot say: too few prefills ended, or some tokens were computed again.

    A step's tokens are one per decode and one per prefill that ended, so that those can be told apart. After a preemption
    a prefill ends twice, and its length is then no prompt's.
    """
    prefills = [record for record in analysis.steps if record.num_prefill_seqs]
    ended = [r.emitted_tokens - r.num_decode_seqs for r in prefills if r.emitted_tokens is not None]
    computed = [r.prefill_tokens for r in prefills if r.prefill_tokens is not None and r.recomputed_tokens == 0]
    finished = sum(ended)
    if finished < policy.min_finished_prefills or not len(ended) == len(computed) == len(prefills):
        return None
    tokens = sum(computed) / finished
    return TypicalPrompt(round(tokens), round(median([record.num_decode_seqs for record in prefills])))


def budget_trade(prompt: TypicalPrompt, budgets: tuple[int, int]) -> str | None:
    """One sentence on two budgets: steps and largest chunk of each. None when a budget leaves the prompt no token."""
    first, second = chunk_frontier(prompt.tokens, prompt.active_decodes, budgets)
    if not first.chunks or not second.chunks:
        return None
    return (
        f"by arithmetic, the window's mean prompt ({prompt.tokens} tokens to compute, beside {prompt.active_decodes} decodes) "
        f"takes {_steps(first)} against {_steps(second)}"
    )


def _steps(row: FrontierRow) -> str:
    """`1 step of 450` for a prompt that fits, `8 of up to 60` for one that does not."""
    return f"1 step of {row.chunks[0]}" if row.steps == 1 else f"{row.steps} steps of up to {row.chunks[0]}"
