"""Rotary positions: the table of cosines and sines by absolute position, and the rotation itself."""

import math

import torch
from torch import Tensor

from engine.errors import ModelError
from engine.model.config import ModelConfig, RopeScaling


def rope_tables(config: ModelConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and signed sin, each [max_position, head_dim], as `rotate` wants them.

    Angles are computed in float64: at position 8191 a float32 angle is already off by 5e-4 rad.
    """
    frequencies = _frequencies(config)
    if config.rope_scaling is not None:
        frequencies = _scale(frequencies, config.rope_scaling)
    angles = torch.outer(torch.arange(config.max_position, dtype=torch.float64), frequencies)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)


def llama3_scaling(config: ModelConfig, divisors: Tensor) -> RopeScaling:
    """The scaling that divides the frequencies of `config` by `divisors` [head_dim / 2].

    GGUF files hold only the outcome. The released models (Llama 3.1 to 3.3) differ in the factor alone, which divides
    the lowest frequency. Raises ModelError when that does not explain the numbers.
    """
    scaling = RopeScaling("llama3", float(divisors.max()), original_max_position=8192)
    frequencies = _frequencies(config)
    if divisors.shape != frequencies.shape or not torch.allclose(
        frequencies / _scale(frequencies, scaling), divisors.double(), rtol=1e-4
    ):
        raise ModelError("the rotary scaling in rope_freqs is not that of Llama 3: use the HF directory")
    return scaling


def _frequencies(config: ModelConfig) -> Tensor:
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    return config.rope_theta**-exponents


def rotate(heads: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotates heads [tokens, heads, head_dim] by rows of the tables [tokens, 1, head_dim].

    The pair of component i is i + head_dim / 2 (rotate-half): (a, b) becomes (a cos - b sin, b cos + a sin).
    """
    first, second = heads.chunk(2, dim=-1)
    return torch.addcmul(heads * cos, torch.cat((second, first), dim=-1), signed_sin)


def _scale(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    stretched = frequencies / scaling.factor
    if scaling.kind == "linear":
        return stretched
    # llama3: long wavelengths are stretched, short ones kept, those between blended.
    wavelengths = 2 * math.pi / frequencies
    ratio = scaling.original_max_position / wavelengths
    blend = (ratio - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * stretched + blend * frequencies
