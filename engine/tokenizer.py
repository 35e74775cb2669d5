"""Text to token ids and back, with an incremental detokeniser for streaming. No torch here."""

import codecs
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from engine.errors import ModelError

BYTE_LEVEL_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Special tokens of `byte_level_tokenizer`: ids 256, 257, 258."""

_GGUF_CONTROL_TOKEN = 3
_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
"""How vocabularies of the SentencePiece kind spell a byte; a space is U+2581 in them."""
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


class Tokenizer:
    """A `tokenizers` backend plus the ids the engine must know."""

    def __init__(self, backend: Backend, *, bos_id: int | None = None, eos_ids: Iterable[int] = ()) -> None:
        self._backend = backend
        self.bos_id = bos_id
        self.eos_ids = frozenset(eos_ids)
        """Generation ends when one of these is sampled."""
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._is_byte_level = isinstance(backend.decoder, decoders.ByteLevel)

    @property
    def vocab_size(self) -> int:
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Special tokens written out in `text` become their ids.

        `add_special_tokens` adds what the model's tokenizer puts around a plain prompt (a BOS, for most Llama models;
        nothing for SmolLM2): not wanted for a rendered chat.
        """
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of a token; None for an id the tokenizer does not know."""
        return self._backend.id_to_token(token_id)

    def token_id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes a token stands for; None unless this is a byte-level tokenizer that knows the id."""
        token = self.token(token_id)
        if token is None or not self._is_byte_level:
            return None
        try:
            return bytes(_BYTE_OF_CHAR[char] for char in token)
        except KeyError:
            # An added token may be written in characters outside the byte alphabet: it stands for itself.
            return token.encode()

    def spelled_out(self, token_id: int) -> bytes:
        """The bytes of a token on its own, of any kind of tokenizer; b"" for an id it does not know."""
        raw = self.token_bytes(token_id)
        if raw is not None:
            return raw
        token = self.token(token_id) or ""
        byte = _BYTE_FALLBACK.fullmatch(token)
        return bytes([int(byte.group(1), 16)]) if byte else token.replace("\u2581", " ").encode()

    def detokenizer(self, *, skip_special_tokens: bool = True) -> "IncrementalDetokenizer":
        return IncrementalDetokenizer(self, skip_special_tokens=skip_special_tokens)

    @property
    def is_byte_level(self) -> bool:
        return self._is_byte_level

    def to_json(self) -> str:
        """The text of a tokenizer.json."""
        return self._backend.to_str(pretty=False)


class IncrementalDetokenizer:
    """Token ids to text, one at a time, never emitting part of a character.

    For byte-level tokenizers the texts of all pushes and of `flush` concatenate to `Tokenizer.decode` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._skip_special_tokens = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # Other tokenizers: a window of ids | already emitted | not yet |, decoded as a whole, since a token's text may
        # depend on the ones before it.
        self._window: list[int] = []
        self._emitted = 0

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; "" while a character is incomplete."""
        if token_id in self._skipped:
            return ""
        if self._tokenizer.is_byte_level:
            return self._utf8.decode(self._tokenizer.token_bytes(token_id) or b"")
        self._window.append(token_id)
        text = self._decode(self._window)
        if text.endswith("\ufffd"):
            return ""
        return self._advance(text)

    def flush(self) -> str:
        """What is left at the end of generation: an incomplete character becomes U+FFFD."""
        if self._tokenizer.is_byte_level:
            return self._utf8.decode(b"", final=True)
        return self._advance(self._decode(self._window))

    def _advance(self, text: str) -> str:
        emitted_text = self._decode(self._window[: self._emitted])
        self._window = self._window[self._emitted :]
        self._emitted = len(self._window)
        return text[len(emitted_text) :]

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip_special_tokens)


def tokenizer_from_file(path: Path, *, bos_id: int | None, eos_ids: Iterable[int]) -> Tokenizer:
    """Reads a tokenizer.json."""
    if not path.is_file():
        raise ModelError(f"no tokenizer.json in {path.parent}: only fast tokenizers are supported")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every unreadable file
        raise ModelError(f"{path} is not a readable tokenizer.json: {error}") from error
    return Tokenizer(backend, bos_id=bos_id, eos_ids=eos_ids)


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Builds the byte-level BPE tokenizer that GGUF metadata describes."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelError(f"GGUF tokenizer {kind!r} is not supported (supported: gpt2, that is byte-level BPE)")
    missing = [name for name in ("tokens", "merges", "token_type") if f"tokenizer.ggml.{name}" not in metadata]
    if missing:
        raise ModelError(f"GGUF metadata lacks tokenizer.ggml.{missing[0]}")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab, [_split_merge(merge, vocab) for merge in metadata["tokenizer.ggml.merges"]]))
    backend.pre_tokenizer = _gguf_pre_tokenizer(str(metadata.get("tokenizer.ggml.pre", "default")))
    backend.decoder = decoders.ByteLevel()
    kinds = zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True)
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, k in kinds if k == _GGUF_CONTROL_TOKEN]
    )
    bos_id, eos_id = metadata.get("tokenizer.ggml.bos_token_id"), metadata.get("tokenizer.ggml.eos_token_id")
    if metadata.get("tokenizer.ggml.add_bos_token") and bos_id is not None:
        bos = tokens[bos_id]
        backend.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, bos_id)])
    return Tokenizer(backend, bos_id=bos_id, eos_ids=() if eos_id is None else (eos_id,))


def byte_level_tokenizer() -> Tokenizer:
    """256 byte tokens in byte order and `BYTE_LEVEL_SPECIALS`; token ids of plain text are its UTF-8 bytes."""
    vocab = {_CHAR_OF_BYTE[byte]: byte for byte in range(256)}
    backend = Backend(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in BYTE_LEVEL_SPECIALS])
    end_of_text, _, end_of_turn = range(256, 259)
    return Tokenizer(backend, bos_id=end_of_text, eos_ids=(end_of_turn,))


def _split_merge(merge: str, vocab: Mapping[str, int]) -> tuple[str, str]:
    # Checked here: the library answers an unknown token with a bare Exception or a panic.
    left, _, right = merge.partition(" ")
    if left not in vocab or right not in vocab or left + right not in vocab:
        raise ModelError(f"GGUF merge {merge!r} names a token that is not in the vocabulary")
    return left, right


def _gguf_pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in ("default", "gpt-2"):
        return byte_level
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    splits = {"llama-bpe": _LLAMA3_SPLIT, "qwen2": _QWEN2_SPLIT}
    if name not in splits:
        raise ModelError(
            f"GGUF pre-tokenizer {name!r} is not supported (supported: gpt-2, smollm, {', '.join(splits)})"
        )
    split = pre_tokenizers.Split(Regex(splits[name]), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _byte_alphabet() -> dict[int, str]:
    """The GPT-2 alphabet: printable Latin-1 bytes stand for themselves, the others for characters from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in alphabet)
    return alphabet | {byte: chr(0x100 + index) for index, byte in enumerate(others)}


_CHAR_OF_BYTE = _byte_alphabet()
_BYTE_OF_CHAR = {char: byte for byte, char in _CHAR_OF_BYTE.items()}
