"""The JSON answers that this version knows, by what they hold."""

from collections.abc import Mapping
from typing import Any

from diagnose.dialects.base import Usage
from diagnose.dialects.state import StateShape, StepShape

_VLLM = "vllm_config"
_VLLM_SERVER_INFO = StateShape(
    engine="vllm",
    name="vLLM's /server_info",
    keys=((_VLLM, "scheduler_config", "max_num_batched_tokens"),),
    gauges={
        "max_batched_tokens": (
            (_VLLM, "scheduler_config", "max_num_scheduled_tokens"),
            (_VLLM, "scheduler_config", "max_num_batched_tokens"),
        ),
        "max_sequences": (
            (_VLLM, "scheduler_config", "max_num_active_seqs"),
            (_VLLM, "scheduler_config", "max_num_seqs"),
        ),
        "pool_blocks": ((_VLLM, "cache_config", "num_gpu_blocks"),),
        "pool_tokens": ((_VLLM, "cache_config", "kv_cache_size_tokens"),),
        "block_size": ((_VLLM, "cache_config", "block_size"),),
    },
    info={
        "model": ((_VLLM, "model_config", "served_model_name"), (_VLLM, "model_config", "model")),
        "max_model_len": ((_VLLM, "model_config", "max_model_len"),),
        "dtype": ((_VLLM, "model_config", "dtype"),),
        "prefix_cache": ((_VLLM, "cache_config", "enable_prefix_caching"),),
        "chunked_prefill": ((_VLLM, "scheduler_config", "enable_chunked_prefill"),),
    },
)
_VERSION = StateShape(engine="server", name="/version", keys=(("version",),), info={"version": (("version",),)})

_SGLANG_SERVER_INFO = StateShape(
    engine="sglang",
    name="SGLang's /server_info",
    keys=(("chunked_prefill_size",), ("max_running_requests",)),
    gauges={
        "max_batched_tokens": (("chunked_prefill_size",),),
        "max_sequences": (("effective_max_running_requests_per_dp",), ("max_running_requests",)),
        "pool_tokens": (("max_total_num_tokens",), ("max_total_tokens",)),
        "block_size": (("page_size",),),
    },
    info={
        "version": (("version",),),
        "model": (("served_model_name",), ("model_path",)),
        "dtype": (("dtype",),),
        "attention_backend": (("attention_backend",),),
        "mixed_chunk": (("enable_mixed_chunk",),),
    },
    coverage={
        "max_batched_tokens": "tokens of one prefill chunk; decodes run in batches of their own unless mixed chunks are on"
    },
)


def _loads(answer: Any) -> Mapping[str, float]:
    """Sums over the ranks of SGLang's /v1/loads; of shares the highest."""
    loads = [load for load in answer.get("loads", ()) if isinstance(load, dict)]
    found: dict[str, float] = {}
    for signal, key in (
        ("running", "num_running_reqs"),
        ("waiting", "num_waiting_reqs"),
        ("pool_tokens", "max_total_num_tokens"),
    ):
        values = [load[key] for load in loads if isinstance(load.get(key), int | float)]
        if values:
            found[signal] = float(sum(values))
    usages = [load["token_usage"] for load in loads if isinstance(load.get("token_usage"), int | float)]
    return found | ({"pool_usage": float(max(usages))} if usages else {})


_SGLANG_LOADS = StateShape(
    engine="sglang",
    name="SGLang's /v1/loads",
    keys=(("loads",),),
    compute=_loads,
    usage=Usage.ACTIVE,
    pool_unit="tokens",
)


def _slots(answer: Any) -> Mapping[str, float]:
    """llama.cpp's slots: how many work, and how full all of them are."""
    slots = [slot for slot in answer if isinstance(slot, dict)]
    total = sum(slot.get("n_ctx", 0) for slot in slots)
    held = sum(_kept(slot) + _decoded(slot) for slot in slots)
    found = {
        "running": float(sum(bool(slot.get("is_processing")) for slot in slots)),
        "max_sequences": float(len(slots)),
    }
    return found | ({"pool_tokens": float(total), "pool_usage": held / total} if total else {})


def _kept(slot: dict[str, Any]) -> int:
    tokens = slot.get("n_prompt_tokens_cache", slot.get("n_prompt_tokens"))
    return tokens if isinstance(tokens, int) else 0


def _decoded(slot: dict[str, Any]) -> int:
    following = slot.get("next_token")
    tokens = following if isinstance(following, list) else [following]
    return sum(token.get("n_decoded", 0) for token in tokens if isinstance(token, dict))


_LLAMACPP_SLOTS = StateShape(
    engine="llamacpp",
    name="llama.cpp's /slots",
    keys=(("n_ctx",), ("is_processing",)),
    is_list=True,
    compute=_slots,
    usage=Usage.SLOTS,
    pool_unit="tokens",
    coverage={"pool_usage": "tokens in slots over all slots' context; what an idle slot keeps is counted"},
)
_LLAMACPP_PROPS = StateShape(
    engine="llamacpp",
    name="llama.cpp's /props",
    keys=(("total_slots",), ("default_generation_settings",)),
    gauges={"max_sequences": (("total_slots",),)},
    info={
        "version": (("build_info",),),
        "model": (("model_alias",), ("model_path",)),
        "max_model_len": (("default_generation_settings", "n_ctx"),),
    },
)
_TGI_INFO = StateShape(
    engine="tgi",
    name="TGI's /info",
    keys=(("model_id",), ("max_concurrent_requests",)),
    gauges={"max_sequences": (("max_batch_size",),)},
    info={"version": (("version",),), "model": (("model_id",),), "max_model_len": (("max_total_tokens",),)},
)

STATE_SHAPES: tuple[StateShape, ...] = (
    _VLLM_SERVER_INFO,
    _SGLANG_SERVER_INFO,
    _SGLANG_LOADS,
    _LLAMACPP_SLOTS,
    _LLAMACPP_PROPS,
    _TGI_INFO,
    _VERSION,
)

STEP_SHAPES: tuple[StepShape, ...] = (
    StepShape(
        engine="tensorrt-llm",
        name="TensorRT-LLM's iteration statistics",
        keys=(("iterLatencyMS",), ("inflightBatchingStats",)),
        milliseconds=("iterLatencyMS",),
        prefill_requests=("inflightBatchingStats", "numContextRequests"),
        prefill_tokens=("inflightBatchingStats", "numCtxTokens"),
        decode_requests=("inflightBatchingStats", "numGenRequests"),
        gauges={
            "running": (("inflightBatchingStats", "numScheduledRequests"), ("numActiveRequests",)),
            "waiting": (("numQueuedRequests",),),
            "paused": (("inflightBatchingStats", "numPausedRequests"), ("numPausedRequests",)),
            "blocks_active": (("kvCacheStats", "usedNumBlocks"),),
            "blocks_free": (("kvCacheStats", "freeNumBlocks"),),
            "pool_blocks": (("kvCacheStats", "maxNumBlocks"),),
            "block_size": (("kvCacheStats", "tokensPerBlock"),),
            "max_sequences": (("maxBatchSizeRuntime",), ("maxBatchSizeStatic",)),
            "max_batched_tokens": (("maxNumTokensRuntime",), ("maxNumTokensStatic",)),
        },
        warning="reading TensorRT-LLM's /metrics takes the records out of its queue: a second reader sees other steps",
        coverage="host and device together; under overlapped scheduling it is not the device's time of that step",
        usage=Usage.ACTIVE,
        free_includes_reclaimable=True,
    ),
)
