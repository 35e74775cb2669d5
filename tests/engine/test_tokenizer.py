"""Text to ids and back, one token at a time, and chat messages to a prompt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.chat_template import CHATML, ChatTemplate
from engine.errors import ModelError, RequestRejected
from engine.tokenizer import BYTE_LEVEL_SPECIALS, byte_level_tokenizer, tokenizer_from_gguf

TOKENIZER = byte_level_tokenizer()


def push_all(ids: list[int], *, skip_special_tokens: bool = True) -> list[str]:
    detokenizer = TOKENIZER.detokenizer(skip_special_tokens=skip_special_tokens)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


def test_plain_text_is_its_bytes():
    assert TOKENIZER.encode("né\n") == list("né\n".encode())
    assert TOKENIZER.vocab_size == 259


def test_special_tokens_are_single_ids_and_are_skipped_in_text():
    ids = TOKENIZER.encode("<|im_start|>a<|im_end|>")
    assert ids == [257, ord("a"), 258]
    assert TOKENIZER.decode(ids) == "a"
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == "<|im_start|>a<|im_end|>"
    assert TOKENIZER.special_ids == {256, 257, 258}
    assert TOKENIZER.eos_ids == {258}
    assert TOKENIZER.token_id("<|im_end|>") == 258


@given(st.text())
def test_round_trip(text):
    for special in BYTE_LEVEL_SPECIALS:
        text = text.replace(special, "")
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.lists(st.integers(0, 258), max_size=40), st.booleans())
def test_pushed_texts_concatenate_to_the_whole(ids, skip_special_tokens):
    """Any ids, also such as are no valid UTF-8."""
    pieces = push_all(ids, skip_special_tokens=skip_special_tokens)
    assert "".join(pieces) == TOKENIZER.decode(ids, skip_special_tokens=skip_special_tokens)


@given(st.text(min_size=1))
def test_no_push_emits_part_of_a_character(text):
    pieces = push_all(TOKENIZER.encode(text))
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(pieces)


def test_an_emoji_of_several_tokens_comes_out_whole():
    pieces = push_all(TOKENIZER.encode("a👩‍👧z"))
    assert [piece for piece in pieces if piece] == ["a", "👩", "\u200d", "👧", "z"]


def test_flush_shows_an_incomplete_character():
    assert push_all(list("é".encode())[:1]) == ["", "\ufffd"]


def test_an_id_outside_the_vocabulary_is_no_text():
    assert push_all([ord("a"), 9999, ord("b")]) == ["a", "", "b", ""]


def test_chat_template_renders_turns_and_the_prompt_for_the_answer():
    template = ChatTemplate(CHATML)
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    turns = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    assert template.render(messages) == turns + "<|im_start|>assistant\n"
    assert template.render(messages, add_generation_prompt=False) == turns


def test_template_whitespace_and_helpers_are_those_templates_are_written_for():
    source = (
        "{% for m in messages %}\n    {% if loop.index > 1 %}{% break %}{% endif %}\n{{ bos_token }}{{ m | tojson }}\n"
        "{% endfor %}\n{{ strftime_now('%Y') | length }}"
    )
    template = ChatTemplate(source, bos_token="<s>")
    rendered = template.render([{"role": "user", "content": "<é>"}, {"role": "user", "content": "b"}])
    assert rendered == '<s>{"role": "user", "content": "<é>"}\n4'


def test_a_template_may_refuse_messages():
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestRejected, match="roles must alternate") as caught:
        template.render([{"role": "user", "content": "x"}])
    assert caught.value.param == "messages"


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": None}], [{"role": "user"}]])
def test_messages_a_template_cannot_render_are_rejected(messages):
    with pytest.raises(RequestRejected) as caught:
        ChatTemplate(CHATML).render(messages)
    assert caught.value.param == "messages"


def test_a_template_cannot_reach_the_interpreter():
    template = ChatTemplate("{{ messages.__class__.__mro__ }}")
    with pytest.raises(RequestRejected, match="unsafe"):
        template.render([{"role": "user", "content": "x"}])


def test_a_template_that_does_not_compile_is_a_model_error():
    with pytest.raises(ModelError, match="does not compile"):
        ChatTemplate("{% for %}")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "tokenizer None is not supported"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer 'llama' is not supported"),
        ({"tokenizer.ggml.model": "gpt2"}, "lacks tokenizer.ggml.tokens"),
    ],
)
def test_gguf_tokenizers_that_cannot_be_built(metadata, message):
    with pytest.raises(ModelError, match=message):
        tokenizer_from_gguf(metadata)
