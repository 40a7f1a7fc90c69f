"""Load the model: fetch, read, assemble."""

from __future__ import annotations

from pathlib import Path

from adaverify_contracts import LoadedModel, ModelGeometry, ModelOptions
from adaverify_smollm2.config import LlamaConfig
from adaverify_smollm2.fetch import fetch_model_file
from adaverify_smollm2.gguf_file import GgufFile
from adaverify_smollm2.source import SMOLLM2_135M


def load_smollm2(options: ModelOptions) -> LoadedModel:
    """Load SmolLM2-135M-Instruct, fetching its file on the first use.

    Args:
        options: device, dtype, cache directory, offline flag and progress callback.

    Raises:
        ModelFileError: the file cannot be had or is not usable; the message says which.
    """
    return load_model_file(fetch_model_file(SMOLLM2_135M, options), options, name=SMOLLM2_135M.name)


def load_model_file(path: Path, options: ModelOptions, *, name: str) -> LoadedModel:
    """Load a plain llama-architecture GGUF file with SmolLM's tokenizer; ``name`` is what the engine shows.

    Raises:
        ModelFileError: damaged, another architecture, or a key or tensor is missing.
    """
    import torch

    from adaverify_smollm2.model import LlamaModel
    from adaverify_smollm2.tokenizer import SmolTokenizer
    from adaverify_smollm2.weights import read_weights

    file = GgufFile(path)
    config = LlamaConfig.read(file)
    tokenizer = SmolTokenizer(file)
    geometry = ModelGeometry(
        name=name,
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocabulary=config.vocabulary,
        max_model_len=config.context,
        stop_tokens=tokenizer.stop_tokens,
    )
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[options.dtype]
    weights = read_weights(file, config, torch.device(options.device), dtype)
    return LoadedModel(model=LlamaModel(config, weights, geometry), tokenizer=tokenizer)
