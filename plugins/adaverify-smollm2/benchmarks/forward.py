"""Time one forward pass with logits, packed against plain projections, attention left out.

Run ``python plugins/adaverify-smollm2/benchmarks/forward.py --json forward.json``. No time is printed before
packed and plain logits agree. Rounds interleave the variants and the row counts; medians and quartiles are
over rounds. Weights are warm: one step reads all of them, 269 MB in bfloat16, more than a cache holds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch

from adaverify_contracts import ModelOptions
from adaverify_smollm2 import SMOLLM2_135M, GgufFile, LlamaConfig, fetch_model_file, load_model_file
from adaverify_smollm2.model import LlamaModel
from adaverify_smollm2.weights import read_weights


def no_attention(*arguments: torch.Tensor) -> torch.Tensor:
    return arguments[1]


def step(model: LlamaModel, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return model.logits(model.forward(tokens, positions, no_attention))


def build(path: Path, dtype: str) -> dict[str, LlamaModel]:
    geometry = load_model_file(path, ModelOptions(dtype=dtype), name=SMOLLM2_135M.name).model.geometry
    models = {}
    for packed in (True, False):
        file = GgufFile(path)
        config = LlamaConfig.read(file)
        weights = read_weights(file, config, torch.device("cpu"), getattr(torch, dtype), packed=packed)
        models["packed" if packed else "plain"] = LlamaModel(config, weights, geometry)
    return models


def check(models: dict[str, LlamaModel], dtype: str, rows: int) -> float:
    tokens, positions = torch.arange(rows) * 37 % 40000, torch.arange(rows)
    packed, plain = (step(models[name], tokens, positions) for name in ("packed", "plain"))
    error = ((packed - plain).norm() / plain.norm()).item()
    allowed = {"float32": 1e-4, "bfloat16": 5e-2}[dtype]
    if not error < allowed:
        raise SystemExit(
            f"packed and plain logits differ by {error:.2e} at {rows} rows, allowed {allowed:.0e}"
        )
    return error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    models = build(fetch_model_file(SMOLLM2_135M, ModelOptions()), arguments.dtype)
    errors = {rows: check(models, arguments.dtype, rows) for rows in arguments.rows}
    times: dict[tuple[str, int], list[float]] = {
        (name, rows): [] for name in models for rows in arguments.rows
    }
    for _ in range(arguments.rounds):
        for name, rows in times:
            tokens, positions = torch.arange(rows) * 37 % 40000, torch.arange(rows)
            start = time.perf_counter()
            step(models[name], tokens, positions)
            times[name, rows].append((time.perf_counter() - start) * 1e3)
    setup = {
        "machine": platform.machine(),
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": arguments.threads,
        "dtype": arguments.dtype,
    }
    print(setup)
    found = []
    for (name, rows), values in times.items():
        low, median, high = statistics.quantiles(values, n=4)
        found.append(
            {
                "variant": name,
                "rows": rows,
                "median_ms": median,
                "quartiles_ms": [low, high],
                "minimum_ms": min(values),
            }
        )
        print(f"{name:7} {rows:4} rows  {median:7.2f} ms  ({low:.2f} .. {high:.2f}, least {min(values):.2f})")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({**setup, "errors": errors, "times": found}, indent=1))


if __name__ == "__main__":
    main()
