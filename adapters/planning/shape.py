"""What a model folder's config.json says of the model's size. Weights are not read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KNOWN = ("llama", "mistral", "qwen2", "qwen3")
"""Model types whose parameters are counted here; others are counted by transformers, on its meta device."""

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class ShapeUnknown(Exception):
    """The size of the model cannot be told; the message is one line that says why."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that memory follows from."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    parameters: int
    """Of the whole model; tied ones count once."""
    layer_parameters: int
    """Of one decoder layer."""
    weight_bytes: int
    """Of one parameter in the folder's own dtype."""

    @property
    def root_parameters(self) -> int:
        """Those outside the layers: embedding, head, last norm."""
        return self.parameters - self.layers * self.layer_parameters

    def kv_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * dtype_bytes


def read_shape(folder: Path) -> ModelShape:
    """Return the sizes that ``config.json`` in `folder` gives. Raises `ShapeUnknown`."""
    path = folder / "config.json"
    try:
        said = json.loads(path.read_text())
    except FileNotFoundError:
        raise ShapeUnknown(f"{path}: no such file: a model folder has one") from None
    except (OSError, ValueError) as error:
        raise ShapeUnknown(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(said, dict):
        raise ShapeUnknown(f"{path} is not a JSON object")
    kind = said.get("model_type")
    try:
        return _counted(said) if kind in KNOWN else _by_transformers(folder)
    except KeyError as error:
        raise ShapeUnknown(f"{path} lacks {error}") from error


def _counted(said: Mapping[str, Any]) -> ModelShape:
    """Count what a decoder of the `KNOWN` kinds has: attention, gated MLP, two norms a layer, embedding and head."""
    hidden, inner, layers = said["hidden_size"], said["intermediate_size"], said["num_hidden_layers"]
    heads, vocabulary = said["num_attention_heads"], said["vocab_size"]
    kv_heads = said.get("num_key_value_heads") or (8 if said["model_type"] == "mistral" else heads)
    size = said.get("head_dim") or (128 if said["model_type"] == "qwen3" else hidden // heads)
    query, key = heads * size, kv_heads * size
    layer = 2 * hidden * query + 2 * hidden * key + 3 * hidden * inner + 2 * hidden
    layer += _biases(said, query + 2 * key, hidden, inner)
    if said["model_type"] == "qwen3":
        layer += 2 * size  # a norm of queries, a norm of keys
    tables = 1 if said.get("tie_word_embeddings", False) else 2
    return ModelShape(
        layers=layers,
        hidden=hidden,
        intermediate=inner,
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        vocabulary=vocabulary,
        parameters=layers * layer + tables * vocabulary * hidden + hidden,
        layer_parameters=layer,
        weight_bytes=BYTES.get(str(said.get("dtype") or said.get("torch_dtype")), 4),
    )


def _biases(said: Mapping[str, Any], attention: int, hidden: int, inner: int) -> int:
    """Return the biases of a layer; `attention` is the width of queries, keys and values together."""
    match said["model_type"]:
        case "qwen2":
            return attention
        case "llama" | "qwen3":
            count = attention + hidden if said.get("attention_bias") else 0
            return count + (2 * inner + hidden if said["model_type"] == "llama" and said.get("mlp_bias") else 0)
    return 0


def _by_transformers(folder: Path) -> ModelShape:
    try:
        import torch
        import transformers
    except ModuleNotFoundError as error:
        raise ShapeUnknown(
            f"{folder}: counting the parameters of such a model takes {error.name}: pip install 'eventrain[torch]'"
        ) from error
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, trust_remote_code=False
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ShapeUnknown(f"{folder}: {' '.join(str(error).split())}") from error
    text = config.get_text_config()
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    heads = text.num_attention_heads
    return ModelShape(
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_size=getattr(text, "head_dim", None) or text.hidden_size // heads,
        vocabulary=text.vocab_size,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layer_parameters=max((sum(one.numel() for one in layer.parameters()) for layer in layers), default=0),
        weight_bytes=BYTES.get(str(config.dtype).removeprefix("torch."), 4),
    )
