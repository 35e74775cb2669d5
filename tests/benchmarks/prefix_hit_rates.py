"""How much of the prompts each prefix index spares: `python -m tests.benchmarks.prefix_hit_rates`. Prints a table.

Three seeded traces through the real scheduler, with made-up tokens for the forward pass; so the numbers are the same on
every machine. A hit rate is prompt tokens that needed no computation over prompt tokens asked for, preempted requests
counted once.
"""

import random
from collections.abc import Callable, Iterator

from engine.config import PREFIX_INDEXES
from engine.request import FinishReason, Request
from engine.scheduler import Scheduler
from tests.engine.builders import make_request, make_scheduler

BLOCK_SIZE = 16
ACTIVE_SESSIONS = 8
VOCABULARY = 50_000

Session = Iterator[tuple[list[int], int]]
"""Prompts, each with the number of tokens to generate; the next one is asked for when that answer is there."""


class Trace:
    """Sessions from one seed. Answers are a function of the request, so that both indexes see the same prompts."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def text(self, low: int, high: int) -> list[int]:
        return [self.draw.randrange(VOCABULARY) for _ in range(self.draw.randint(low, high))]

    def multi_turn(self) -> list[Session]:
        """60 conversations under one system prompt, 6 turns each: a turn repeats all that was said before."""
        system = self.text(90, 90)
        scripts = [[self.text(20, 120) for _ in range(6)] for _ in range(60)]
        return [self._converse(system, script) for script in scripts]

    @staticmethod
    def _converse(system: list[int], script: list[list[int]]) -> Session:
        said = list(system)
        for number, question in enumerate(script):
            said = said + question
            yield said, 40
            said = said + [answer_token(said, i) for i in range(40 if number < len(script) - 1 else 0)]

    def shared_system_prompt(self) -> list[Session]:
        """400 single questions after one of 12 system prompts, the first of them asked for most."""
        systems = [self.text(150, 500) for _ in range(12)]
        popularity = [1 / rank for rank in range(1, 13)]
        chosen = self.draw.choices(systems, popularity, k=400)
        return [iter([(system + self.text(15, 60), 24)]) for system in chosen]

    def few_shot(self) -> list[Session]:
        """400 questions, each after the first 2 to 8 of the solved examples of one of 16 tasks."""
        tasks = [(self.text(25, 40), [self.text(20, 70) for _ in range(8)]) for _ in range(16)]
        sessions: list[Session] = []
        for _ in range(400):
            header, examples = self.draw.choice(tasks)
            shown = sum(examples[: self.draw.randint(2, 8)], header)
            sessions.append(iter([(shown + self.text(10, 30), 8)]))
        return sessions


def answer_token(prompt: list[int], position: int) -> int:
    return (sum(prompt[-8:]) * 31 + len(prompt) * 7 + position) % VOCABULARY


def serve_all(scheduler: Scheduler, sessions: list[Session]) -> None:
    """A fixed number of sessions at a time, in a seeded order of turns."""
    draw = random.Random(1)
    waiting, asked = list(sessions), 0
    live: dict[str, Session] = {}
    thinking: list[Session] = []
    while waiting or live or thinking:
        while waiting and len(live) + len(thinking) < 3 * ACTIVE_SESSIONS:
            thinking.append(waiting.pop(0))
        while thinking and len(live) < ACTIVE_SESSIONS:
            session = thinking.pop(draw.randrange(len(thinking)))
            turn = next(session, None)
            if turn is not None:
                asked += 1
                request = make_request(f"q{asked}", turn[0], max_tokens=turn[1])
                scheduler.add(request)
                live[request.request_id] = session
        for request in run_step(scheduler):
            thinking.append(live.pop(request.request_id))


def run_step(scheduler: Scheduler) -> list[Request]:
    """One step; returns the requests that it ended."""
    step = scheduler.schedule()
    if step.is_empty:
        return []
    rows = [one.request for one in step.sampled]
    tokens = [answer_token(request.prompt_token_ids, len(request.output_token_ids)) for request in rows]
    ended = [
        request
        for request in scheduler.commit(step, tokens, 0)
        if len(request.output_token_ids) == request.params.max_tokens
    ]
    for request in ended:
        scheduler.finish(request, FinishReason.LENGTH)
    return ended


def measure(sessions: list[Session], kv_blocks: int, prefix_index: str) -> tuple[float, int]:
    """Hit rate, and blocks evicted."""
    scheduler = make_scheduler(
        max_batched_tokens=512, block_size=BLOCK_SIZE, kv_blocks=kv_blocks, prefix_index=prefix_index
    )
    serve_all(scheduler, sessions)
    scheduler.check_invariants()
    counters = scheduler.counters
    return counters.prefix_hit_tokens / counters.prefix_query_tokens, counters.evictions


TRACES: dict[str, tuple[Callable[[Trace], list[Session]], tuple[int, ...]]] = {
    "multi-turn": (Trace.multi_turn, (400, 600, 800, 4000)),
    "shared system prompt": (Trace.shared_system_prompt, (300, 400, 600, 4000)),
    "few-shot": (Trace.few_shot, (250, 400, 600, 4000)),
}


def main() -> None:
    names = "".join(f"{name + ' hit':>16}{'evicted':>9}" for name in PREFIX_INDEXES)
    print(f"{'trace':<22}{'blocks':>7}{names}")
    for name, (generate, pools) in TRACES.items():
        for kv_blocks in pools:
            row = [measure(generate(Trace(7)), kv_blocks, prefix_index) for prefix_index in PREFIX_INDEXES]
            print(f"{name:<22}{kv_blocks:>7}" + "".join(f"{rate:>15.1%} {evicted:>9}" for rate, evicted in row))


if __name__ == "__main__":
    main()
