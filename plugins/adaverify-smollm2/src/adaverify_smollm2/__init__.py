"""SmolLM2-135M-Instruct as a target model of the reference engine."""

from adaverify_smollm2.config import LlamaConfig
from adaverify_smollm2.fetch import fetch_model_file
from adaverify_smollm2.gguf_file import GgufFile
from adaverify_smollm2.load import load_model_file, load_smollm2
from adaverify_smollm2.source import SMOLLM2_135M, ModelSource

__all__ = [
    "SMOLLM2_135M",
    "GgufFile",
    "LlamaConfig",
    "ModelSource",
    "fetch_model_file",
    "load_model_file",
    "load_smollm2",
]
