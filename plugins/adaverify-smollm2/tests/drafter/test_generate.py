"""The training's target: its text is the engine's text."""

from __future__ import annotations

import pytest
import torch


def test_greedy_rows_are_what_the_model_itself_writes(tiny_path, tiny_target, dense_attend):
    """Static cache, buckets and prompts of several lengths change no greedy id."""
    from drafter_training.generate import Writer

    from adaverify_contracts import ModelOptions
    from adaverify_smollm2 import load_model_file

    model = load_model_file(tiny_path, ModelOptions(dtype="float32"), name="tiny").model
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(3, 260, (5, 24), generator=generator)
    lengths = torch.tensor([1, 3, 8, 5, 2])
    out = Writer(tiny_target, 5, 24, 2).write(prompts, lengths, torch.ones(2), seed=1)
    for row in range(3):
        attend, count = dense_attend(), int(lengths[row])
        tokens = prompts[row, :count]
        ids, position = tokens.tolist(), torch.arange(count)
        while len(ids) < 24:
            hidden = model.forward(tokens, position, attend)
            tokens = model.logits(hidden[-1:]).argmax(-1)
            ids.append(int(tokens))
            position = position[-1:] + 1
        assert out[row].tolist() == ids
    for row in (3, 4):
        count = int(lengths[row])
        assert torch.equal(out[row, :count], prompts[row, :count])


def test_draws_follow_the_seed(tiny_target):
    """One seed gives one text, another seed another, and greedy rows ignore it."""
    from drafter_training.generate import Writer

    writer = Writer(tiny_target, 4, 32, 2)
    arguments = torch.full((4, 32), 9), torch.full((4,), 4), torch.ones(2)
    first, again, other = (writer.write(*arguments, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert torch.equal(first[:2], other[:2]) and not torch.equal(first[2:], other[2:])


def test_draws_have_the_law_of_the_softmax(tiny_target):
    """The next token's frequencies at temperature 0.7, against the probabilities, by chi-square."""
    from drafter_training.generate import Writer

    rows = 4000
    writer = Writer(tiny_target, rows, 3, rows)
    prompt = torch.tensor([[40, 77, 0]]).expand(rows, 3)
    out = writer.write(prompt, torch.full((rows,), 2), torch.full((rows,), 0.7), seed=3)
    seen = tiny_target.run(prompt[:1, :2], (1,), ())
    law = (tiny_target.weights.head(seen.hidden)[0, 1] / 0.7).softmax(-1)
    counts = torch.bincount(out[:, 2], minlength=len(law)).float()
    likely = law > 0.002
    observed = torch.cat([counts[likely], counts[~likely].sum(0, keepdim=True)])
    expected = torch.cat([law[likely], law[~likely].sum(0, keepdim=True)]) * rows
    cells = len(expected)
    statistic = float(((observed - expected) ** 2 / expected).sum())
    # Mean cells - 1, standard deviation sqrt(2 (cells - 1)): five of them off happens once in 10^5.
    assert statistic < cells - 1 + 5 * (2 * (cells - 1)) ** 0.5


def test_features_and_keys_are_those_of_the_layers(tiny_target, tiny_path, dense_attend):
    """Keys of the dense pass are what the engine's attention is handed."""
    from adaverify_contracts import ModelOptions
    from adaverify_smollm2 import load_model_file

    tokens = torch.arange(12) + 5
    attend = dense_attend()
    model = load_model_file(tiny_path, ModelOptions(dtype="float32"), name="tiny").model
    hidden = model.forward(tokens, torch.arange(12), attend)
    seen = tiny_target.run(tokens.unsqueeze(0), (1, 2), (0, 1))
    for layer in (0, 1):
        torch.testing.assert_close(seen.keys[layer][0], attend.keys[layer], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(seen.values[layer][0], attend.values[layer], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(seen.hidden[0], hidden, atol=1e-5, rtol=1e-5)
    last = seen.features[0, :, 64:]
    torch.testing.assert_close(
        tiny_target.norm(last, tiny_target.weights.last_norm), hidden, atol=1e-5, rtol=1e-5
    )


def test_a_drawn_row_turns_greedy_where_it_is_told(tiny_target):
    """From its calm position on, a drawn row is what a greedy row writes after the same beginning."""
    from drafter_training.generate import Writer

    prompts = torch.randint(3, 260, (3, 32), generator=torch.Generator().manual_seed(2))
    lengths, calm = torch.full((3,), 4), torch.tensor([10, 20, 32])
    out = Writer(tiny_target, 3, 32, 3).write(prompts, lengths, torch.full((3,), 2.0), seed=1, calm=calm)
    greedy = Writer(tiny_target, 3, 32, 0).write(out, calm, torch.ones(0), seed=1)
    assert torch.equal(out, greedy)
    assert not torch.equal(
        out[:, 4:10], Writer(tiny_target, 3, 32, 0).write(out, lengths, torch.ones(0), 1)[:, 4:10]
    )


@pytest.mark.gpu
def test_captured_steps_write_what_plain_ones_write(tiny_path):
    """On a CUDA device: graphs over several lengths, greedy and drawn rows, twice from one writer."""
    from drafter_training.generate import Writer
    from drafter_training.target import DenseTarget

    device = torch.device("cuda")
    target = DenseTarget.load(tiny_path, device, torch.float32, 160)
    prompts = torch.randint(3, 260, (8, 160), generator=torch.Generator().manual_seed(2))
    arguments = prompts, torch.full((8,), 5), torch.ones(4)
    plain = Writer(target, 8, 160, 4)
    captured = Writer(target, 8, 160, 4)
    captured.capture()
    first, again = (captured.write(*arguments, seed=1) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(first[:4], plain.write(*arguments, seed=1)[:4])
