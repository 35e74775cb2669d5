"""Request bodies, decoded strictly: `temperature: false` is an error, and so is everything asked for that we do not do.

Three kinds of OpenAI fields: supported ones; *neutral* ones, accepted at the value that asks for nothing; and
labels without effect on the answer (`user`, `metadata`). Any other field is refused by name rather than ignored.
"""

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from engine.request import SamplingParams
from engine.server.errors import ApiError

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_CHOICES = 16
MAX_LOGPROBS = 20
MAX_BIASED_TOKENS = 300
MAX_TOKEN_ID_DIGITS = 10

PositiveInt = Annotated[int, Meta(ge=1)]
Temperature = Annotated[float, Meta(ge=0.0, le=2.0)]
TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
TopK = Annotated[int, Meta(ge=-1)]
MinP = Annotated[float, Meta(ge=0.0, le=1.0)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
RepetitionPenalty = Annotated[float, Meta(ge=0.01, le=100.0)]
Bias = Annotated[float, Meta(ge=-100.0, le=100.0)]
NumLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Salt = Annotated[str, Meta(max_length=256)]


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Common(Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of both kinds of completion."""

    model: str | None = None
    max_tokens: PositiveInt | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Bias] | None = None
    """Token id, as a string, to what is added to its logit."""
    # Our extensions, in the words of vLLM's.
    top_k: TopK | None = None
    """0 and -1 keep every token."""
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    """About prompt and output; 1 changes nothing. The bounds keep every logit finite."""
    ignore_eos: bool | None = None
    cache_salt: Salt | None = None
    # Labels.
    user: str | None = None

    def stop_strings(self) -> tuple[str, ...]:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stop) > MAX_STOP_STRINGS:
            raise ApiError(400, f"stop has {len(stop)} strings, at most {MAX_STOP_STRINGS} are allowed", param="stop")
        if not all(0 < len(text) <= MAX_STOP_CHARS for text in stop):
            raise ApiError(400, f"stop strings must have 1 to {MAX_STOP_CHARS} characters", param="stop")
        return tuple(stop)

    def sampling_params(self, max_tokens: int, vocab_size: int) -> SamplingParams:
        """OpenAI's defaults: temperature 1, top_p 1. Raises ApiError 400 for what the types cannot say."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(0, self.top_k or 0),
            min_p=self.min_p or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=self._bias(vocab_size),
            logprobs=self.num_logprobs(),
            seed=self.seed,
            stop=self.stop_strings(),
            ignore_eos=bool(self.ignore_eos),
        )

    @property
    def their_names(self) -> dict[str, str]:
        """The engine's names of parameters to those of this body, where they differ."""
        return {}

    def num_logprobs(self) -> int | None:
        """Alternatives per token; None when log probabilities are not asked for."""
        raise NotImplementedError

    def _bias(self, vocab_size: int) -> tuple[tuple[int, float], ...]:
        bias = self.logit_bias or {}
        if len(bias) > MAX_BIASED_TOKENS:
            message = f"logit_bias has {len(bias)} tokens, at most {MAX_BIASED_TOKENS} are allowed"
            raise ApiError(400, message, param="logit_bias")
        for name in bias:
            is_number = len(name) <= MAX_TOKEN_ID_DIGITS and name.isascii() and name.isdecimal()
            if not is_number or str(int(name)) != name or int(name) >= vocab_size:
                message = f"logit_bias names {name!r}, token ids are 0 to {vocab_size - 1}"
                raise ApiError(400, message, param="logit_bias")
        return tuple((int(name), value) for name, value in bias.items())

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionBody(Common, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[Any]
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: NumLogprobs | None = None
    """Alternatives to report for each token; 0 reports the chosen token alone."""

    def num_logprobs(self) -> int | None:
        return self.logprobs


class ContentPart(Struct, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class ChatMessage(Struct, forbid_unknown_fields=True, kw_only=True):
    """One turn. The empty fields of an assistant's answer may be sent back as they came."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ContentPart]
    name: str | None = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None
    audio: None = None
    annotations: None = None

    def as_template(self) -> dict[str, str]:
        """What chat templates read; `developer` is OpenAI's newer word for `system`."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatBody(Common, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    """Alternatives to report for each token; needs `logprobs`."""
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    web_search_options: dict[str, Any] | None = None
    moderation: dict[str, Any] | None = None
    service_tier: str | None = None
    store: bool | None = None
    # Labels.
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None

    @property
    def their_names(self) -> dict[str, str]:
        limit = "max_completion_tokens" if self.max_completion_tokens is not None else "max_tokens"
        return {"prompt": "messages", "max_tokens": limit}

    def num_logprobs(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
}
"""Field -> values that ask for nothing; null always does."""


class LimitsBody(Struct, forbid_unknown_fields=True):
    """POST /admin/limits: either or both."""

    max_batched_tokens: int | None = None
    max_sequences: int | None = None


class PrefixCacheBody(Struct, forbid_unknown_fields=True):
    """POST /admin/prefix_cache."""

    enabled: bool


T = TypeVar("T", bound=Struct)

_FIELD_PATH = re.compile(r"at `\$\.([A-Za-z_]+)")
_FIELD_NAME = re.compile(r"field `([^`]+)`")


def decode_body(raw: bytes, kind: type[T]) -> T:
    """Raises ApiError 400 that names the parameter."""
    try:
        body = msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        text = str(error)
        found = _FIELD_PATH.search(text) or _FIELD_NAME.search(text)
        code = "unknown_parameter" if "unknown field" in text else None
        param = found.group(1) if found else None
        raise ApiError(400, text + _bounds(kind, param), param=param, code=code) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    _refuse_unsupported(body)
    return body


def _bounds(kind: type[Struct], name: str | None) -> str:
    """Both ends of what a number may be: the decoder names only the one that was passed."""
    for field in msgspec.structs.fields(kind):
        if field.encode_name == name:
            declared = msgspec.inspect.type_info(field.type)
            types = declared.types if isinstance(declared, msgspec.inspect.UnionType) else (declared,)
            for one in types:
                if isinstance(one, msgspec.inspect.IntType | msgspec.inspect.FloatType):
                    ends = ((">=", one.ge), (">", one.gt), ("<=", one.le), ("<", one.lt))
                    said = " and ".join(f"{sign} {end:.15g}" for sign, end in ends if end is not None)
                    return f" ({name} must be {said})" if said else ""
    return ""


def _refuse_unsupported(body: Struct) -> None:
    for name in body.__struct_fields__:
        neutral = NEUTRAL.get(name)
        if neutral is None:
            continue
        value = getattr(body, name)
        if value is None or any(type(value) is type(allowed) and value == allowed for allowed in neutral):
            continue
        raise ApiError(400, f"{name} is not supported here", param=name, code="unsupported_parameter")
