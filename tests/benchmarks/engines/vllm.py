"""vLLM's CPU build: one `LLM`, as vLLM compiles it by default."""

import argparse
import os
from typing import Any

from tests.benchmarks.engines import subject


def load(args: argparse.Namespace) -> tuple[str, subject.Generate]:
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # as the others, which bind to no core either
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import vllm  # type: ignore[import-not-found, unused-ignore]

    llm: Any = vllm.LLM(
        model=args.model,
        dtype="float32",
        kv_cache_memory_bytes=1 << 30,
        max_num_batched_tokens=subject.MAX_BATCHED_TOKENS,
        max_num_seqs=256,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )

    def generate(prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        params = vllm.SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [list(done.outputs[0].token_ids) for done in llm.generate(asked, params, use_tqdm=False)]

    return vllm.__version__, generate


if __name__ == "__main__":
    subject.main(load)
