"""A pool and a scheduler with the behaviour of vLLM's that the probe relies on, small enough to be seen through.

tests/vllm runs the same probe in a real vLLM; these are for what a real one cannot be made to do on demand.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass(eq=False)
class FakeBlock:
    block_id: int
    ref_cnt: int = 0
    block_hash: bytes | None = None
    is_null: bool = False


class FakeQueue:
    """Free blocks, the next one to be taken first."""

    def __init__(self, blocks: Sequence[FakeBlock]) -> None:
        self._blocks = deque(blocks)

    @property
    def num_free_blocks(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: object) -> bool:
        return block in self._blocks

    def popleft(self) -> FakeBlock:
        return self._blocks.popleft()

    def popleft_n(self, n: int) -> list[FakeBlock]:
        return [self._blocks.popleft() for _ in range(n)]

    def remove(self, block: FakeBlock) -> None:
        self._blocks.remove(block)

    def append(self, block: FakeBlock) -> None:
        self._blocks.append(block)

    def append_n(self, blocks: Sequence[FakeBlock]) -> None:
        self._blocks.extend(blocks)

    def prepend_n(self, blocks: Sequence[FakeBlock]) -> None:
        self._blocks.extendleft(reversed(blocks))


class FakePool:
    def __init__(self, num_gpu_blocks: int) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.blocks = [FakeBlock(number) for number in range(num_gpu_blocks)]
        self.free_block_queue = FakeQueue(self.blocks)
        self.free_block_queue.popleft().is_null = True

    def get_new_blocks(self, num_blocks: int) -> list[FakeBlock]:
        taken = self.free_block_queue.popleft_n(num_blocks)
        for block in taken:
            block.block_hash = None
            block.ref_cnt = 1
        return taken

    def touch(self, blocks: Iterable[FakeBlock]) -> None:
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, blocks: Iterable[FakeBlock]) -> None:
        released = []
        for block in blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                released.append(block)
        self.free_block_queue.prepend_n([block for block in released if block.block_hash is None])
        self.free_block_queue.append_n([block for block in released if block.block_hash is not None])

    def evict_blocks(self, block_ids: set[int]) -> None:
        for index in block_ids:
            self.blocks[index].block_hash = None

    def reset_prefix_cache(self) -> bool:
        if self.free_block_queue.num_free_blocks != self.num_gpu_blocks - 1:
            return False
        for block in self.blocks:
            block.block_hash = None
        return True


@dataclass(eq=False)
class FakeRequest:
    request_id: str
    num_prompt_tokens: int
    arrival_time: float = 0.0
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    num_output_tokens: int = 0
    block_hashes: list[bytes] = field(default_factory=list)


class FakeScheduler:
    """`plan` is what the next schedule() decides: tokens by request id."""

    def __init__(self, pool: FakePool | None = None) -> None:
        self.kv_cache_manager = SimpleNamespace(block_pool=pool or FakePool(17))
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.waiting: list[Any] = []
        self.deferred_waiting: set[Any] = set()
        self.max_num_active_reqs = 4
        self.max_num_scheduled_tokens = 64

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)

    def output(self, plan: dict[str, int], finished: Iterable[str] = ()) -> SimpleNamespace:
        """What schedule() returns, after it has advanced the requests."""
        for name, tokens in plan.items():
            self.requests[name].num_computed_tokens += tokens
        return SimpleNamespace(num_scheduled_tokens=plan, finished_req_ids=set(finished))


def engine_outputs(tokens: dict[str, int], finished: dict[str, str] | None = None) -> dict[int, Any]:
    """vLLM's outputs of one client: `tokens` new ones by request."""
    ended = finished or {}
    outputs = [
        SimpleNamespace(request_id=name, new_token_ids=[7] * count, finish_reason=ended.get(name))
        for name, count in tokens.items()
    ]
    return {0: SimpleNamespace(outputs=outputs)}
