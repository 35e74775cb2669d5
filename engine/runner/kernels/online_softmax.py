"""One step of attention with a running softmax, shared by the decode and the prefill kernel."""

import triton
import triton.language as tl


@triton.jit
def attend_tile(query, keys, values, visible, accumulated, maximum, total, scale_log2):
    """Takes one tile of KV in. M query rows, N positions, D components.

    query [M, D], keys [D, N], values [N, D] in the pool's precision; visible [M, N] or [1, N] bool.
    accumulated [M, D], maximum [M] and total [M] are float32 and describe all tiles before: the unnormalised output, the
    largest score so far and the sum of weights against it. Scores are kept times log2(e), so that exp2 does.
    """
    # ieee: float32 inputs are not rounded to tf32. For 16-bit inputs it changes nothing.
    scores = tl.dot(query, keys, input_precision="ieee") * scale_log2
    scores = tl.where(visible, scores, float("-inf"))
    new_maximum = tl.maximum(maximum, tl.max(scores, 1))
    # A row that has seen nothing yet keeps -inf; subtracting it from itself would give nan.
    safe_maximum = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = tl.exp2(scores - safe_maximum[:, None])
    rescale = tl.exp2(maximum - safe_maximum)
    accumulated = accumulated * rescale[:, None]
    accumulated = tl.dot(weights.to(values.dtype), values, accumulated, input_precision="ieee")
    return accumulated, new_maximum, total * rescale + tl.sum(weights, 1)
