"""What the engine would run on here: `python -m engine.check` prints it as JSON, for readers that never import the engine."""

import json
import sys
from typing import NamedTuple

import torch

from engine.errors import ModelError
from engine.model.registry import SMOLLM2, smollm2_path
from engine.native import library


class Fact(NamedTuple):
    text: str
    """What it is, or why it is not and what would bring it."""
    works: bool


def facts() -> dict[str, Fact]:
    """By subject."""
    return {"device": Fact(_device(), True), "kernels": _kernels(), "weights": _weights()}


def _device() -> str:
    if torch.cuda.is_available():
        return f"torch {torch.__version__} on {torch.cuda.device_count()}x {torch.cuda.get_device_name()}"
    return f"torch {torch.__version__} on the CPU, {torch.get_num_threads()} threads"


def _kernels() -> Fact:
    try:
        library.load(1)
    except library.Unavailable as reason:
        return Fact(f"the compiled CPU kernels {reason}; torch does their work", False)
    return Fact("the compiled CPU kernels load", True)


def _weights() -> Fact:
    try:
        return Fact(f"{SMOLLM2}: {smollm2_path()}", True)
    except ModelError as error:
        return Fact(str(error), False)


if __name__ == "__main__":
    json.dump({subject: fact._asdict() for subject, fact in facts().items()}, sys.stdout)
