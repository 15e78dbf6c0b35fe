"""The size of a model, from its config.json alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eventrain.adapters.planning.shape import ShapeUnknown, read_shape

SIZES = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 101,
}
MODELS = Path(__file__).resolve().parents[3] / "examples/placements/models"


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gpt_neox"])
@pytest.mark.parametrize(
    "more", [{}, {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}, {"head_dim": 16}]
)
def test_parameters_are_those_of_the_model(tmp_path, kind, more):
    """Counted from config.json, parameters and those of a layer are what transformers builds, also of other kinds."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(kind, **SIZES, **more)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    shape = read_shape(tmp_path)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    layer = (model.gpt_neox if kind == "gpt_neox" else model.model).layers[0]
    assert shape.layer_parameters == sum(parameter.numel() for parameter in layer.parameters())
    assert shape.layers == 3


@pytest.mark.parametrize(("name", "parameters"), [("qwen2.5-0.5b", 494_032_768), ("qwen2.5-7b", 7_615_616_512)])
def test_the_shipped_sizes_are_those_of_the_models(name, parameters):
    """The example folders give the parameter counts that their models are published with."""
    assert read_shape(MODELS / name).parameters == parameters


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "config.json: no such file: a model folder has one"),
        ("{", "config.json cannot be read"),
        ("[]", "config.json is not a JSON object"),
        ('{"model_type": "qwen2"}', "config.json lacks 'hidden_size'"),
    ],
)
def test_a_folder_that_says_nothing_is_one_line(tmp_path, text, line):
    """What is wrong with a folder is said with the file's name."""
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ShapeUnknown, match=line):
        read_shape(tmp_path)


def test_the_dtype_is_the_folders(tmp_path):
    """16-bit weights count two bytes, and a folder that does not say counts four."""
    said = {"model_type": "llama", **SIZES}
    for dtype, size in ({"torch_dtype": "float16"}, 2), ({"dtype": "bfloat16"}, 2), ({}, 4):
        (tmp_path / "config.json").write_text(json.dumps(said | dtype))
        assert read_shape(tmp_path).weight_bytes == size
