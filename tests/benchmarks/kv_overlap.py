"""What streaming KV chunk by chunk hides: `python -m tests.benchmarks.kv_overlap`. Prints a table and asserts nothing.

Two pairs of processes on this machine answer the same prompts one after the other, one that sends each chunk as soon as it is
computed and one that sends them all at the end. exposed: what the transfer added to the prefill instance's own time, per
prompt; wire: time in which its chunks were sent. `--link-ms` makes every chunk take so much longer, as a slow link would.
"""

import argparse
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.engine.model_helpers import make_prompt
from tests.engine.pair import complete, metrics, pair


@dataclass(frozen=True)
class Arm:
    overlap: bool
    num_prompts: int
    chunks: float
    """Per prompt, as all that follow."""
    megabytes: float
    wire_seconds: float
    exposed_seconds: float
    ttft_seconds: float

    @property
    def hidden(self) -> float:
        """Share of the time on the wire that nobody waited for."""
        return max(0.0, 1 - self.exposed_seconds / self.wire_seconds) if self.wire_seconds else 0.0


def measure(overlap: bool, model: str, length: int, prompts: int, chunk: int, link_ms: int) -> Arm:
    options = ["--max-batched-tokens", str(chunk)]
    options += [] if overlap else ["--no-transfer-overlap"]
    options += ["--drill-fault", f"transfer={link_ms}ms"] if link_ms else []
    both = ("--model", model, "--threads", "1", "--kv-blocks", str((length // 16 + 4) * (prompts + 2)))
    with pair(both=both, prefill=tuple(options)) as running:
        complete(running.decode, make_prompt(length, seed=1), max_tokens=1)  # both sides warm
        before = metrics(running.decode)
        for seed in range(prompts):
            complete(running.decode, make_prompt(length, seed=100 + seed), max_tokens=2)
        after = metrics(running.decode)

    def mean(name: str) -> float:
        return (after[name] - before.get(name, 0.0)) / prompts

    return Arm(
        overlap=overlap,
        num_prompts=prompts,
        chunks=mean('kv_transfer_chunks_total{direction="received"}'),
        megabytes=mean('kv_transfer_bytes_total{direction="received"}') / 1e6,
        wire_seconds=mean("kv_transfer_seconds_sum"),
        exposed_seconds=mean("kv_transfer_exposed_seconds_sum"),
        ttft_seconds=mean("time_to_first_token_seconds_sum"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--tokens", type=int, default=1024, help="of each prompt")
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--chunk", type=int, default=128, help="token budget of the prefill instance")
    parser.add_argument("--link-ms", type=int, default=0, help="what a chunk takes longer; 0: this machine's loopback")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args()
    os.environ["STALLSCOPE_DRILLS"] = "1"
    arms = [
        measure(overlap, options.model, options.tokens, options.prompts, options.chunk, options.link_ms)
        for overlap in (True, False)
    ]
    print(f"{options.prompts} prompts of {options.tokens} tokens, chunks of {options.chunk}, model {options.model}")
    print(f"{'overlap':8} {'chunks':>7} {'MB':>8} {'wire ms':>9} {'exposed ms':>11} {'hidden':>7} {'TTFT ms':>9}")
    for arm in arms:
        print(
            f"{'on' if arm.overlap else 'off':8} {arm.chunks:7.1f} {arm.megabytes:8.2f} {arm.wire_seconds * 1e3:9.2f}"
            f" {arm.exposed_seconds * 1e3:11.2f} {arm.hidden:7.0%} {arm.ttft_seconds * 1e3:9.2f}"
        )
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(arm) for arm in arms], indent=1) + "\n")


if __name__ == "__main__":
    main()
