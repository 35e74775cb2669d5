"""Chat messages to prompt text, through the model's own jinja template in a sandbox."""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import ModelError, RequestRejected

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The template of the tiny model."""


class ChatTemplate:
    """A compiled template. Whitespace rules and helpers are those of transformers, for which templates are written."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the model's chat template does not compile: {error}") from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """`messages` have at least `role` and `content` (text). RequestRejected when the template refuses them."""
        if not messages:
            raise RequestRejected("messages must not be empty", param="messages")
        values = self._tokens | variables | {"messages": messages, "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(values)
        except (jinja2.TemplateError, TypeError, KeyError, ValueError) as error:
            # Templates concatenate strings without looking: a null content ends as TypeError here.
            raise RequestRejected(f"the chat template refuses these messages: {error}", param="messages") from error


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # jinja's own filter escapes HTML characters, which a prompt must not have.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
