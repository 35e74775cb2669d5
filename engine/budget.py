"""The arithmetic of a step's token budget: decodes first, prompts share the rest."""

PLAN_ASSUMPTIONS = (
    "the active decodes stay the same number in every step",
    "a sequence slot is free for the prompt",
    "every KV block reservation succeeds",
)
"""What `plan_chunks` takes for granted. The scheduler does not: it plans again in every step."""


def plan_chunks(total_prompt_tokens: int, active_decodes: int, max_batched_tokens: int) -> list[int]:
    """Chunk lengths in which a prompt is prefilled beside `active_decodes`, one step each, under PLAN_ASSUMPTIONS.

    Raises ValueError for a budget <= 0 or a negative count, and RuntimeError when the decodes take the whole budget:
    the planner has no later step to put the prompt off to. The scheduler defers it instead, with the reason.
    """
    if max_batched_tokens <= 0:
        raise ValueError(f"max_batched_tokens must be positive, got {max_batched_tokens}")
    if total_prompt_tokens < 0:
        raise ValueError(f"total_prompt_tokens must be non-negative, got {total_prompt_tokens}")
    if active_decodes < 0:
        raise ValueError(f"active_decodes must be non-negative, got {active_decodes}")
    available = max_batched_tokens - active_decodes
    if available <= 0:
        raise RuntimeError(
            f"No prefill progress possible: active_decodes ({active_decodes}) "
            f">= max_batched_tokens ({max_batched_tokens}). "
            f"Prefill cannot be scheduled without violating budget."
        )
    full_chunks, rest = divmod(total_prompt_tokens, available)
    return [available] * full_chunks + ([rest] if rest else [])


def attention_pairs(start: int, num_tokens: int) -> int:
    """Query-key pairs of a causal chunk: each of its tokens meets all `start` earlier positions and its own past.

    positions   0 ......... start ......... start + num_tokens
                |- history -|---- chunk ---|
    """
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2
