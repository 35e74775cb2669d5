"""Step annotations of serving engines as profilers show them -> what the step computed. Every form that was ever written.

    execute_context_N(M)_generation_K(L)              vLLM 0.18 on: requests (tokens) of both phases
    execute_T_context_N(sq sk ..)_generation_K(sq sk ..)   vLLM with detailed annotations: with the sums that price attention
    execute_new_N_cached_M                            vLLM 0.12, 0.13: new and known requests, which are no phases
    step[EXTEND bs=B toks=T], step[DECODE bs=B], ..    SGLang 0.5.12 on; TensorRT-LLM writes EXTEND and DECODE alike

None where a form does not say it: it is not zero.
"""

import re
from dataclasses import dataclass

from probes.records import StepKind, step_kind

_SUMS = r"\(sq(\d+)sk(\d+)sqsq(\d+)sqsk(\d+)\)"
_VLLM = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
_VLLM_DETAILED = re.compile(rf"execute_\d+_context_(\d+){_SUMS}_generation_(\d+){_SUMS}")
_VLLM_OLD = re.compile(r"execute_new_(\d+)_cached_(\d+)")
_BRACKETS = re.compile(r"step\[(\w+) (?:raw_)?bs=(\d+)(?: toks=(\d+))?(.*)", re.DOTALL)

_DECODES = frozenset({"DECODE", "VERIFY", "TARGET_VERIFY"})
_EXTENDS = frozenset({"EXTEND", "PREFILL"})


@dataclass(frozen=True, slots=True)
class StepSpan:
    """One step as its annotation states it."""

    form: str
    """Who writes it so: `vLLM`, `vLLM 0.12-0.13` or `SGLang or TensorRT-LLM`."""
    kind: StepKind | None
    """None: the annotation does not tell the phase."""
    num_decode_seqs: int | None
    num_prefill_seqs: int | None
    prefill_tokens: int | None
    """Prompt tokens, those computed again after a preemption included where the engine counts them so."""
    generation_tokens: int | None
    """Tokens of sequences that have output already; more than the sequences under speculation, or after a preemption."""
    num_requests: int
    decode_context_tokens: int | None = None
    prefill_attention_pairs: int | None = None

    @property
    def is_dummy(self) -> bool:
        """Nothing was scheduled: a run that keeps data-parallel ranks in step, or a warm-up."""
        return self.num_requests == 0


def parse_step_span(name: str) -> StepSpan | None:
    """None for an annotation that is no step of its own: a scope, a draft pass, sampling beside a step."""
    if (found := _VLLM.fullmatch(name)) is not None:
        prefills, tokens, decodes, generated = map(int, found.groups())
        return _of_phases(prefills, tokens, decodes, generated)
    if (found := _VLLM_DETAILED.fullmatch(name)) is not None:
        prefills, tokens, _, squares, products, decodes, generated, context, _, _ = map(int, found.groups())
        # A chunk of q tokens that ends at position k has q*k - (q*q - q)/2 pairs under the causal mask.
        pairs = products - (squares - tokens) // 2
        return _of_phases(prefills, tokens, decodes, generated, context, pairs)
    if (found := _VLLM_OLD.fullmatch(name)) is not None:
        new, cached = int(found[1]), int(found[2])
        # A later chunk of a long prompt counts as cached, so that only a step of new requests alone has a phase.
        kind = None if new == 0 else StepKind.PREFILL if cached == 0 else StepKind.MIXED
        alone = cached == 0
        return StepSpan("vLLM 0.12-0.13", kind, 0 if alone else None, new if alone else None, None, None, new + cached)
    if (found := _BRACKETS.match(name)) is not None:
        return _of_brackets(found[1], int(found[2]), found[3], found[4])
    return None


def _of_phases(
    prefills: int, tokens: int, decodes: int, generated: int, context: int | None = None, pairs: int | None = None
) -> StepSpan:
    return StepSpan(
        "vLLM",
        step_kind(decodes, prefills),
        decodes,
        prefills,
        tokens,
        generated,
        prefills + decodes,
        context,
        pairs,
    )


def _of_brackets(mode: str, batch: int, tokens: str | None, rest: str) -> StepSpan | None:
    if "sample" in rest:
        return None  # TensorRT-LLM's sampling beside the step of the same name
    form = "SGLang or TensorRT-LLM"
    if mode in _DECODES:
        return StepSpan(form, StepKind.DECODE, batch, 0, 0, None if mode != "DECODE" else batch, batch)
    if mode in _EXTENDS:
        return StepSpan(form, StepKind.PREFILL, 0, batch, None if tokens is None else int(tokens), 0, batch)
    if mode == "MIXED":
        return StepSpan(form, StepKind.MIXED, None, None, None, None, batch)
    return None
