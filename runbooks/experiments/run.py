"""Runs the blocks of a comparison in pairs of random order, and keeps whatever was completed."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from diagnose.policy import Policy
from diagnose.slo import Objective
from runbooks.experiments.analysis import Question, analyse
from runbooks.experiments.arms import ArmCrashed, Arms
from runbooks.experiments.client import Client, Traffic, first_model
from runbooks.experiments.figures import Block, make_block, speed_index
from runbooks.experiments.served import num_sent, read_page, served_since, share_of_others
from runbooks.experiments.statistics import Looks, block_order
from runbooks.experiments.workload import Workload


@dataclass(frozen=True, slots=True)
class Plan:
    looks: Looks
    block_seconds: float
    washout_seconds: float
    """The first part of each block, which is not measured."""
    drain_seconds: float
    seed: int
    objectives: tuple[Objective, ...]
    policy: Policy
    model: str | None = None
    key_header: str | None = None

    @property
    def pairs(self) -> int:
        return self.looks.at[-1]

    @property
    def seconds(self) -> float:
        """How long all of it takes at least."""
        return 2 * self.pairs * self.block_seconds


@dataclass(slots=True)
class Run:
    blocks: list[Block] = field(default_factory=list)
    crash: str = ""
    """Which arm's server ended, and what it said."""
    interrupted: bool = False
    stopped_early: bool = False


def run_blocks(
    plan: Plan,
    arms: Arms,
    workload: Workload,
    question: Question,
    on_progress: Callable[[int, str, float], None] = lambda *_: None,
) -> Run:
    """`on_progress` gets the number of the block, its arm and the seconds since its start.

    A crash of an arm and an interruption end the run and are told; what was completed stays. Raises ExperimentError when
    an arm cannot be set up. Arms are put back by the caller's `with`.
    """
    run = Run()
    number = 0
    try:
        for pair, order in enumerate(block_order(plan.pairs, plan.seed)):
            for arm in order:
                run.blocks.append(_run_block(plan, arms, workload, pair, arm, number, on_progress))
                number += 1
            if (
                pair + 1 in plan.looks.at[:-1]
                and analyse(run.blocks, question, level=plan.looks.level, policy=plan.policy).decided
            ):
                run.stopped_early = True
                break
    except ArmCrashed as crash:
        run.crash = str(crash)
    except KeyboardInterrupt:
        run.interrupted = True
    return run


def _run_block(
    plan: Plan,
    arms: Arms,
    workload: Workload,
    pair: int,
    arm: str,
    number: int,
    on_progress: Callable[[int, str, float], None],
) -> Block:
    url = arms.enter(arm)
    speed = speed_index()
    arrivals = workload.block(pair, plan.block_seconds)

    async def load() -> Traffic:
        model = plan.model or await first_model(url, plan.key_header)
        client = Client(url, model, plan.key_header, plan.drain_seconds)
        # A salt per block: what an earlier block left in a prefix cache helps neither arm.
        salt = f"{plan.seed}-{number}"
        return await client.run(arrivals, plan.block_seconds, salt, lambda at: on_progress(number, arm, at))

    before = read_page(url)
    traffic = asyncio.run(load())
    arms.check(arm)
    others = share_of_others(traffic, served_since(url, before, num_sent(traffic)))
    window = (plan.washout_seconds, plan.block_seconds)
    return make_block(pair, arm, traffic, window, plan.objectives, speed, others)
