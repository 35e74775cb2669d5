"""A loaded model's tokenizer and chat template, as the handlers use them."""

from collections.abc import Sequence

from engine.chat_template import ChatTemplate
from engine.errors import RequestRejected
from engine.model.registry import LoadedModel
from engine.outputs import Detokenizer
from engine.tokenizer import Tokenizer


class ModelCodec:
    """Implements `engine.server.context.TextCodec`."""

    def __init__(self, model: LoadedModel) -> None:
        self._tokenizer: Tokenizer = model.tokenizer
        self._template: ChatTemplate | None = model.chat_template
        self._vocab_size = model.config.vocab_size

    @property
    def vocab_size(self) -> int:
        """Of the model: it may have more rows than the tokenizer has tokens."""
        return self._vocab_size

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        if self._template is None:
            raise RequestRejected(
                "this model has no chat template; use /v1/completions", param="messages", code="no_chat_template"
            )
        return self._tokenizer.encode(self._template.render(messages), add_special_tokens=False)

    def detokenizer(self) -> Detokenizer:
        return self._tokenizer.detokenizer()

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokenizer.spelled_out(token_id)
