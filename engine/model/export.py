"""Writes a loaded model as a Hugging Face directory that transformers and other engines can load."""

import json
from pathlib import Path

from safetensors.torch import save_file

from engine.model.config import config_to_hf
from engine.model.registry import LoadedModel
from engine.model.weights import split_to_hf


def export_hf(model: LoadedModel, directory: str | Path) -> Path:
    """Writes config.json, model.safetensors, tokenizer.json, tokenizer_config.json and generation_config.json.

    The directory is created; files of those names in it are replaced. Returns it.
    """
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    dtype = str(model.weights.dtype).removeprefix("torch.")
    config = config_to_hf(model.config, dtype)
    save_file(split_to_hf(model.config, model.weights), target / "model.safetensors", metadata={"format": "pt"})
    (target / "tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
    _write_json(target / "config.json", config)
    _write_json(target / "generation_config.json", {key: config[key] for key in ("bos_token_id", "eos_token_id")})
    _write_json(target / "tokenizer_config.json", _tokenizer_config(model))
    return target


def _tokenizer_config(model: LoadedModel) -> dict[str, object]:
    tokenizer = model.tokenizer
    values: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.config.max_position,
        "clean_up_tokenization_spaces": False,
    }
    if tokenizer.bos_id is not None:
        values["bos_token"] = tokenizer.token(tokenizer.bos_id)
    if tokenizer.eos_ids:
        values["eos_token"] = tokenizer.token(max(model.config.eos_ids, default=max(tokenizer.eos_ids)))
    if model.chat_template is not None:
        values["chat_template"] = model.chat_template.source
    return values


def _write_json(path: Path, values: dict[str, object]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
