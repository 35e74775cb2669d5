"""Kernel names of vLLM, SGLang, FlashInfer, TensorRT-LLM, cuBLAS and our own engine, each with the class it must fall into."""

from pathlib import Path

import pytest

from probes.kernel_patterns import KernelClass, kernel_class, op_class
from probes.records import OpClass, StepKind

NAMES = Path(__file__).resolve().parent.parent / "data" / "kernel_names.tsv"
CASES = [line.split("\t") for line in NAMES.read_text(encoding="utf-8").splitlines() if line]


def test_there_are_all_cases():
    assert len(CASES) == 74


@pytest.mark.parametrize(("name", "expected"), CASES, ids=[name[:48] for name, _ in CASES])
def test_a_kernel_falls_into_its_class(name: str, expected: str):
    assert kernel_class(name) == expected


def test_an_unknown_name_is_unclassified():
    assert kernel_class("frobnicate<int>") is KernelClass.UNCLASSIFIED


@pytest.mark.parametrize(
    ("kind", "step", "expected"),
    [
        (KernelClass.ATTN_MIXED, StepKind.DECODE, OpClass.ATTENTION_DECODE),
        (KernelClass.ATTN_MIXED, StepKind.PREFILL, OpClass.ATTENTION_PREFILL),
        (KernelClass.ATTN_MIXED, StepKind.MIXED, OpClass.ATTENTION_MIXED),
        (KernelClass.ATTN_PREFILL, StepKind.DECODE, OpClass.ATTENTION_DECODE),  # FlashInfer with tensor cores
        (KernelClass.ATTN_PREFILL, StepKind.MIXED, OpClass.ATTENTION_MIXED),
        (KernelClass.ATTN_DECODE, StepKind.MIXED, OpClass.ATTENTION_DECODE),
        (KernelClass.MOE_GEMM, StepKind.DECODE, OpClass.GEMM),
        (KernelClass.UNCLASSIFIED, StepKind.DECODE, OpClass.OTHER),
    ],
)
def test_the_step_decides_what_a_name_cannot(kind: KernelClass, step: StepKind, expected: OpClass):
    assert op_class(kind, step) is expected
