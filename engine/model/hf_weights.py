"""A Hugging Face model directory: config.json, safetensors (one file or a sharded index), tokenizer, chat template."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.chat_template import ChatTemplate
from engine.errors import ModelError
from engine.model.config import ModelConfig, config_from_hf, token_ids
from engine.tokenizer import Tokenizer, tokenizer_from_file

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"


class SafetensorsSource:
    """`engine.model.weights.TensorSource` over the safetensors files of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, Any] = {}
        if (directory / _INDEX_FILE).is_file():
            self._file_of: dict[str, str] = read_json(directory / _INDEX_FILE).get("weight_map", {})
        elif (directory / _SINGLE_FILE).is_file():
            self._file_of = dict.fromkeys(self._open(_SINGLE_FILE).keys(), _SINGLE_FILE)
        else:
            raise ModelError(f"no {_SINGLE_FILE} and no {_INDEX_FILE} in {directory}")

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def read(self, name: str) -> Tensor:
        if name not in self._file_of:
            raise ModelError(f"{self._directory} lacks tensor {name}")
        try:
            tensor: Tensor = self._open(self._file_of[name]).get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{self._directory}: tensor {name} cannot be read: {error}") from error
        return tensor

    def _open(self, file_name: str) -> Any:
        if file_name not in self._files:
            try:
                # safe_open maps the file; get_tensor copies one tensor out of it.
                self._files[file_name] = safe_open(str(self._directory / file_name), framework="pt")
            except (SafetensorError, OSError) as error:
                path = self._directory / file_name
                raise ModelError(f"{path} is missing, truncated or damaged: {error}") from error
        return self._files[file_name]


def read_config(directory: Path) -> ModelConfig:
    """config.json, with the further end-of-sequence ids that generation_config.json may name."""
    config = config_from_hf(read_json(directory / "config.json"))
    generation_path = directory / "generation_config.json"
    if generation_path.is_file():
        more_ids = token_ids(read_json(generation_path).get("eos_token_id"))
        config = replace(config, eos_ids=tuple(dict.fromkeys((*config.eos_ids, *more_ids))))
    return config


def read_tokenizer(directory: Path, config: ModelConfig) -> tuple[Tokenizer, ChatTemplate | None]:
    tokenizer = tokenizer_from_file(directory / "tokenizer.json", bos_id=config.bos_id, eos_ids=config.eos_ids)
    config_path = directory / "tokenizer_config.json"
    values = read_json(config_path) if config_path.is_file() else {}
    source = _template_source(directory, values)
    if source is None:
        return tokenizer, None
    tokens = {name: _token_text(values.get(name)) for name in ("bos_token", "eos_token")}
    return tokenizer, ChatTemplate(source, **tokens)


def read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return values


def _template_source(directory: Path, values: Mapping[str, Any]) -> str | None:
    own_file = directory / "chat_template.jinja"
    if own_file.is_file():
        return own_file.read_text(encoding="utf-8")
    template = values.get("chat_template")
    if isinstance(template, list):  # several named templates: [{"name": ..., "template": ...}]
        named = {item["name"]: item["template"] for item in template}
        template = named.get("default")
    return template


def _token_text(value: Any) -> str:
    """A special token in tokenizer_config.json: a string, or a dict with its `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value or ""
