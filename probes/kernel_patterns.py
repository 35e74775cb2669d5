"""Kernel names as profilers show them -> classes of device work, by ordered patterns: the first match wins.

The order is the method. Grouped products are named like plain ones, and are tested after the plain names that no grouped
one has; a cutlass name can hold `relu` and a fused KV insert `rope` or `norm`, so that matrix products and KV writes come
before activations and norms. `cutlass::device_kernel` alone says nothing: the template's text decides. Needs demangled names
with template arguments; AMD kernels are not covered.
"""

import re
from enum import StrEnum
from functools import cache, lru_cache

from probes.records import OpClass, StepKind


class KernelClass(StrEnum):
    """Finer than `OpClass`: what a kernel is by its name alone."""

    MEMCPY = "memcpy"
    MEMSET = "memset"
    GEMM = "gemm"
    COMM = "comm"
    KV_WRITE = "kv_write"
    KV_MOVE = "kv_move"
    ATTN_SCHED = "attn_sched"
    ATTN_DECODE = "attn_decode"
    ATTN_MIXED = "attn_mixed"
    """One kernel for prefill and decode: which of them, only the step can say."""
    ATTN_PREFILL = "attn_prefill"
    ATTN_INDEX = "attn_index"
    ATTN_CASCADE = "attn_cascade"
    LINEAR_ATTN = "linear_attn"
    MOE_GEMM = "moe_gemm"
    MOE_ROUTE = "moe_route"
    SAMPLING = "sampling"
    QUANT = "quant"
    NORM_ROPE_FUSED = "norm_rope_fused"
    NORM = "norm"
    ROPE = "rope"
    ACTIVATION = "activation"
    EMBEDDING = "embedding"
    ELEMENTWISE = "elementwise"
    UNCLASSIFIED = "unclassified"


PATTERNS: tuple[tuple[KernelClass, str], ...] = (
    (
        KernelClass.MEMCPY,
        r"^Memcpy |^\[CUDA memcpy|^Memcpy",
    ),
    (
        KernelClass.MEMSET,
        r"^Memset|^\[CUDA memset",
    ),
    (
        KernelClass.GEMM,
        r"cutlass_\d+_(tensorop|wmma|simt)|xmma_gemm|^nvjet|_s\d+gemm_",
    ),
    (
        KernelClass.COMM,
        r"ncclDevKernel|ncclKernel|nccl[A-Z_]|AllReduce_Sum|cross_device_reduce|[tT]wo[sS]hotAll[rR]educe|"
        r"[oO]ne[sS]hotAll[rR]educe|allreduce_fusion|all_?reduce_|multimem_|mnnvl|lamport|symm_mem|nvshmem|"
        r"deep_ep::|deepep|\binternode::|\bintranode::|quickreduce|all_gather|reduce_scatter|all_to_all|"
        r"alltoall|moe_?[aA]2[aA]|moeA2A",
    ),
    (
        KernelClass.KV_WRITE,
        r"reshape_and_cache|concat_and_cache|KVInsert|KVRopeQuantInsert|store_kv_?cache|set_mla_kv|"
        r"set_kv_buffer|KVCacheInsert|DsMlaInsert|MLAKVConcat|QConcat(KVCache|DsMla)|QKVQuantKVCache|"
        r"FullCacheKernel|AppendPagedKVCache|AppendPagedKVMla|QuantizeAppendPagedKV|fused_rope_store|"
        r"indexer_k_quant_and_cache|kv_cache_update|_write_kv|k_quant_cache|^_write$|index_?[cC]opy",
    ),
    (
        KernelClass.KV_MOVE,
        r"copy_blocks|swap_blocks|gather_and_maybe_dequant_cache|gather_cache|cp_gather_|transfer_kv_|"
        r"transfer_kernel_impl|load_cache_|kv_page_|hisparse",
    ),
    (
        KernelClass.ATTN_SCHED,
        r"get_mla_metadata|prepare_varlen_num_blocks|mla_metadata|tile_scheduler_meta|compute_mn_major|"
        r"paged_mqa_logits_metadata",
    ),
    (
        KernelClass.ATTN_DECODE,
        r"flash_fwd_splitkv_mla|flash_fwd_mla_combine|splitkv_mla_combine|BatchDecodeWithPagedKVCache|"
        r"BatchDecodeMla|BatchDecodeWithPagedKVCacheKernelMLA|_fwd_grouped_kernel_stage1|_fwd_kernel_stage1|"
        r"_fwd_kernel_stage2|_decode_(att|softmax)|kernel_paged_attention_2d|paged_attention_v[12]|"
        r"\bpaged_attention_ll4mi|masked_multihead_attention|mmha|kernel_unified_attention_3d|reduce_segments|"
        r"SingleDecodeWithKVCache|decode::(sparse|dense)|Sm100FmhaMlaKernelTma|"
        r"cutlass::fmha::kernel::Sm100FmhaGenKernel|XQA|xqa|kernel_mha.*(?:Gen|decode)|^_decode_split$|^_combine$",
    ),
    (
        KernelClass.ATTN_MIXED,
        r"BatchMLAPage|BatchMLAPagedAttention|FlashAttnFwdSm90|FlashAttnFwdSm80|FlashAttnFwdSm100|"
        r"FlashAttentionForwardSm|FlashAttnFwd|flash_fwd_splitkv|FlashAttnFwdCombine|kernel_unified_attention|"
        r"PersistentKernelTemplate|BlockPODPersistent|PODWithKVCache|fmhaSm\d+|fmha_v2|fmhaKernel|mha_varlen|"
        r"flash_fwd_combine",
    ),
    (
        KernelClass.ATTN_PREFILL,
        r"flash_fwd_kernel|BatchPrefillWith(Paged|Ragged)KVCache|SinglePrefillWithKVCache|prefill::|"
        r"_fwd_kernel_unified|flash_fwd_sparse_kernel|attn_res_fwd|^_fwd_kernel$|context_attention_fwd|"
        r"extend_attention|sparse_attn_fwd|\bFMHA\b|cutlass::fmha|^_prefill_tile$",
    ),
    (
        KernelClass.ATTN_INDEX,
        r"mqa_logits|topk_select|fast_topk|top_k_per_row|topKPerRow|indexer|persistent_topk|"
        r"[fF]iltered_?[tT]op[kK]|sampled_topk",
    ),
    (
        KernelClass.ATTN_CASCADE,
        r"merge_attn_states|MergeStates?Kernel|merge_state|VariableLengthMergeStates|"
        r"PersistentVariableLengthMergeStates",
    ),
    (
        KernelClass.LINEAR_ATTN,
        r"selective_scan|causal_conv1d|chunk_(gated_)?delta|gdn|kda|mamba|lightning_attn|gated_delta|"
        r"fused_recurrent|chunk_scan|chunk_state|ssd_",
    ),
    (
        KernelClass.MOE_GEMM,
        r"fused_moe_kernel|marlin_moe|GroupProblemShape|group_gemm|grouped_gemm|group_mm|m_grouped|_mega_moe|"
        r"moe_vec_q|_matmul_ogs|bmm_(E|Mx|Bf|Fp)|bmm_.*sm100|moe_wna16|invoke_fused_moe|moe_gemm|cutlass_moe|"
        r"GroupedGemm",
    ),
    (
        KernelClass.MOE_ROUTE,
        r"topkGating|topk_?gating|moe_align|grouped_topk|moe_sum|count_and_sort|expert_permut|permute_(q|wv)|"
        r"expandInputRows|finalizeMoe|sortAndPermute|router_gemm|moe_permute|fused_topk|biased_topk|"
        r"routing.*Kernel|moe_topk|permute_unpermute|moe_fused_gate|eplb|moe_lora_align|single_group_topk|"
        r"shuffle(Input)?Rows|compute_expert_offsets|apply_shuffle_mul_sum|fused_gas_kernel",
    ),
    (
        KernelClass.SAMPLING,
        r"Sampling|OnlineSoftmax|TopK(Mask|Renorm)|TopP(Renorm)|topk_topp|rejection_|_sample_|sample_kernel|"
        r"apply_.*penalt|temperature_kernel|LogitsBitmask|apply_token_bitmask|cunn_SoftMax|softmax_warp|"
        r"SoftMaxForward|RadixTopK|sbtopk|mbtopk|gatherTopK|ArgMax|argmax|multinomial|exponential_kernel|"
        r"distribution_nullary|_min_p|gumbel|[lL]og_?[sS]oftmax|bitmask",
    ),
    (
        KernelClass.QUANT,
        r"quant_(8bit|fp8|kernel|static|smooth)|per_token_(group_)?quant|scaled_fp8_quant|scaled_int8_quant|"
        r"_fp8_quant|dynamic_per_token|cvt_fp16_to_fp4|cvt_.*fp4|quantize_(fp|nv|mx)|nvfp4_quant|mxfp\d_quant|"
        r"silu_mul_quant|per_token_cast|group_quant|fp8_quantize|segmented_max_reduction|dequantize_block|"
        r"_quant_kernel|hadamard|_quantize_nv|mxfp\d_experts_quant",
    ),
    (
        KernelClass.NORM_ROPE_FUSED,
        r"[qQ][kK]_?[nN]orm_?[rR]ope|NormRope",
    ),
    (
        KernelClass.NORM,
        r"rms_?norm|RMSNorm|layer_?norm|LayerNorm|_norm_|NormKernel|norm_kernel|l2norm|rsqrt",
    ),
    (
        KernelClass.ROPE,
        r"[rR]otary|[rR]ope|RoPE",
    ),
    (
        KernelClass.ACTIVATION,
        r"act_and_mul|silu|gelu|swiglu|activation_kernel|masked_activation|mul_sigmoid|situ_and_mul|\brelu",
    ),
    (
        KernelClass.GEMM,
        r"nvjet|gemm|Gemm|GEMM|_mm_|scaled_mm|splitKreduce|splitK|gemv|Marlin|marlin|machete|cublas|xmma|"
        r"s\d+gemm|h\d+gemm|cutlass_\d+_|wgmma|mul_mat|awq|gptq|_matmul|matmul|dot_kernel|qgemm|"
        r"cutlass::Kernel2",
    ),
    (
        KernelClass.EMBEDDING,
        r"embedding|indexSelect|index_select|vectorized_gather|EmbeddingBag|index_elementwise|gather_kernel",
    ),
    (
        KernelClass.ELEMENTWISE,
        r"elementwise|vectorized_|CatArray|direct_copy|fill_kernel|FillFunctor|triton_poi|triton_per|"
        r"triton_red|unrolled|reduce_kernel|scan_|cub::|thrust|DeviceRadix|DeviceScan|RadixSort|arange|"
        r"copy_kernel|index_put|scatter|_assemble|prepare_(pos|inputs)|_post_update|_compute_slot|"
        r"compute_slot_mapping|apply_write|write_req_to_token|create_flashinfer_kv_indices|get_num_kv_splits|"
        r"advance_step|compute_position",
    ),
)
"""Class and the regular expression that puts a name into it."""


@cache
def _compiled() -> tuple[tuple[KernelClass, re.Pattern[str]], ...]:
    """On first use: most of what imports this module reads no trace."""
    return tuple((kind, re.compile(pattern)) for kind, pattern in PATTERNS)


_ALWAYS = {
    KernelClass.MEMCPY: OpClass.COPY,
    KernelClass.MEMSET: OpClass.COPY,
    KernelClass.KV_MOVE: OpClass.COPY,
    KernelClass.GEMM: OpClass.GEMM,
    KernelClass.MOE_GEMM: OpClass.GEMM,
    KernelClass.COMM: OpClass.COMM,
    KernelClass.KV_WRITE: OpClass.KV_WRITE,
    KernelClass.SAMPLING: OpClass.SAMPLING,
    KernelClass.NORM_ROPE_FUSED: OpClass.NORM_ROPE_ACT,
    KernelClass.NORM: OpClass.NORM_ROPE_ACT,
    KernelClass.ROPE: OpClass.NORM_ROPE_ACT,
    KernelClass.ACTIVATION: OpClass.NORM_ROPE_ACT,
}
ATTENTION = frozenset(
    {
        KernelClass.ATTN_SCHED,
        KernelClass.ATTN_DECODE,
        KernelClass.ATTN_MIXED,
        KernelClass.ATTN_PREFILL,
        KernelClass.ATTN_INDEX,
        KernelClass.ATTN_CASCADE,
        KernelClass.LINEAR_ATTN,
    }
)
_BY_STEP = {
    StepKind.DECODE: OpClass.ATTENTION_DECODE,
    StepKind.PREFILL: OpClass.ATTENTION_PREFILL,
    StepKind.MIXED: OpClass.ATTENTION_MIXED,
}


@lru_cache(maxsize=65536)
def kernel_class(name: str) -> KernelClass:
    """`UNCLASSIFIED` when no pattern knows the name."""
    for kind, pattern in _compiled():
        if pattern.search(name):
            return kind
    return KernelClass.UNCLASSIFIED


def op_class(kind: KernelClass, step: StepKind) -> OpClass:
    """Where a kernel's time goes in a step of this kind.

    The step decides between prefill and decode, not the name: FlashInfer runs its prefill kernels for decode rows of
    grouped-query models. In a mixed step a name is only trusted where it is of one phase; what serves both is
    `attention_mixed`, since no name separates one launch.
    """
    if kind in ATTENTION:
        if step is StepKind.MIXED and kind is KernelClass.ATTN_DECODE:
            return OpClass.ATTENTION_DECODE
        return _BY_STEP[step]
    return _ALWAYS.get(kind, OpClass.OTHER)


_FA3_TILE = re.compile(r"CollectiveMainloopFwdSm90<\s*\d+,\s*cute::tuple<[^()]*?>\s*,\s*cute::tuple<\s*cute::C<(\d+)>")
_TRTLLM_PHASE = re.compile(r"fmhaSm\d+.*?(ForGen|Context)")


@lru_cache(maxsize=65536)
def attention_phase(name: str, grid_x: int) -> StepKind | None:
    """What one attention launch shows of its rows: DECODE when all of them are of one query token, PREFILL when some are
    of more, None when the name and the grid do not tell. Grid 0: not known.

    FA3 takes a tile of 64 rows only when no sequence has more than 64 rows of queries; FA2's grid.x counts tiles of
    queries, so that one means short queries; trtllm-gen names its phase.
    """
    kind = kernel_class(name)
    if kind is KernelClass.ATTN_DECODE:
        return StepKind.DECODE
    if kind is not KernelClass.ATTN_MIXED:
        return None  # prefill kernels serve decode rows too
    if (tile := _FA3_TILE.search(name)) is not None:
        return StepKind.DECODE if tile[1] == "64" else StepKind.PREFILL
    if (phase := _TRTLLM_PHASE.search(name)) is not None:
        return StepKind.DECODE if phase[1] == "ForGen" else StepKind.PREFILL
    if "flash_fwd_splitkv_kernel" in name and grid_x:
        return StepKind.DECODE if grid_x == 1 else StepKind.PREFILL
    return None
