"""The drafter's module: dense against paged attention, causality of the head, padding, dtype casts."""

from __future__ import annotations

import pytest
import torch


def written(count: int, width: int, vocabulary: int = 260) -> torch.Tensor:
    return torch.randint(3, vocabulary, (count, width), generator=torch.Generator().manual_seed(11))


class PagedContext:
    """Attention over pages in a shuffled order, one query at a time: what an engine hands over."""

    page = 4

    def __init__(self, seen, tables: torch.Tensor, lengths: list[int], block: int) -> None:
        self.tables, self.lengths, self.block = tables, lengths, block
        self.caches = {}
        for layer in seen.keys:
            parts = []
            for whole in (seen.keys[layer], seen.values[layer]):
                cache = torch.full((int(tables.max() + 1) * self.page, *whole.shape[2:]), torch.nan)
                for request, length in enumerate(lengths):
                    cache[self._places(request, length)] = whole[request, :length]
                parts.append(cache)
            self.caches[layer] = parts

    def _places(self, request: int, length: int) -> torch.Tensor:
        at = torch.arange(length)
        return self.tables[request, at // self.page] * self.page + at % self.page

    def __call__(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(queries)
        for slot, query in enumerate(queries):
            request = slot // self.block
            places = self._places(request, self.lengths[request])
            key, value = (part[places] for part in self.caches[layer])
            group = query.shape[0] // key.shape[1]
            scores = (query.view(key.shape[1], group, -1) @ key.permute(1, 2, 0)) * query.shape[1] ** -0.5
            out[slot] = (scores.softmax(-1) @ value.transpose(0, 1)).view_as(query)
        return out


def inputs(target, config, tokens, at):
    from drafter_training.context import anchored

    seen = target.run(tokens, config.feature_layers, config.cross_layers)
    return seen, anchored(seen.features, at), tokens.gather(1, at).flatten(), at.flatten()


def test_dense_and_paged_attention_draft_the_same(tiny_target, tiny_drafter, tiny_config):
    """What training computes over rectangles is what an engine computes over pages."""
    from drafter_training.context import DenseContext

    tokens = written(3, 30)
    at = torch.tensor([[1], [13], [29]])
    seen, *arguments = inputs(tiny_target, tiny_config, tokens, at)
    dense = tiny_drafter.draft(*arguments, DenseContext(seen, at, tiny_config.block))
    tables = torch.randperm(24, generator=torch.Generator().manual_seed(1)).view(3, 8)
    paged = tiny_drafter.draft(
        *arguments, PagedContext(seen, tables, at.flatten().tolist(), tiny_config.block)
    )
    assert torch.equal(dense[0], paged[0])
    torch.testing.assert_close(dense[1], paged[1], atol=1e-5, rtol=1e-5)


def test_many_anchors_of_a_sequence_draft_as_each_alone(tiny_target, tiny_drafter, tiny_config):
    """Anchors of one rectangle do not see one another, nor what stands at or after their own position."""
    from drafter_training.context import DenseContext

    tokens = written(2, 20)
    at = torch.tensor([[3, 9, 19], [1, 2, 12]])
    seen, *arguments = inputs(tiny_target, tiny_config, tokens, at)
    together = tiny_drafter.draft(*arguments, DenseContext(seen, at, tiny_config.block))
    for sequence in range(2):
        for place in range(3):
            position = int(at[sequence, place])
            alone = tokens[sequence : sequence + 1].clone()
            alone[:, position + 1 :] = 7
            one = torch.tensor([[position]])
            seen_alone, *own = inputs(tiny_target, tiny_config, alone, one)
            drafts, doubts = tiny_drafter.draft(*own, DenseContext(seen_alone, one, tiny_config.block))
            row = sequence * 3 + place
            assert torch.equal(drafts[0], together[0][row])
            torch.testing.assert_close(doubts[0], together[1][row], atol=1e-5, rtol=1e-5)


def test_the_confidence_never_reads_the_token_it_is_about(tiny_drafter):
    """Relabelling what position k proposes changes later confidences only."""
    hidden = torch.randn(5, 4, 64, generator=torch.Generator().manual_seed(2))
    tokens = torch.arange(5) + 10
    _, before = tiny_drafter.decode(hidden, tokens)
    tiny_drafter.draft_ids.copy_(tiny_drafter.draft_ids.roll(1))
    drafts, after = tiny_drafter.decode(hidden, tokens)
    assert torch.equal(before[:, 0], after[:, 0])
    assert not torch.equal(before[:, 1:], after[:, 1:])
    assert drafts.min() >= 0


def test_drafts_are_what_teacher_forcing_on_them_gives(tiny_drafter):
    """Feeding the drafted tokens back as previous tokens reproduces every choice: the head is first order."""
    head = tiny_drafter.head
    hidden = torch.randn(6, 4, 64, generator=torch.Generator().manual_seed(4))
    tokens = torch.arange(6) + 40
    drafts, doubts = tiny_drafter.decode(hidden, tokens)
    previous = torch.cat([tokens.unsqueeze(1), drafts[:, :-1]], 1)
    ready, row = head.prepare(hidden), tiny_drafter.table(previous)
    state, mixed = head.bias(ready.mix, row)
    logits = ready.base + head.markov(state).float()
    assert torch.equal(tiny_drafter.draft_ids[logits.argmax(-1)], drafts)
    log_peak = logits.log_softmax(-1).amax(-1)
    torch.testing.assert_close(head.confidence(ready.doubt, row, mixed, log_peak), doubts)


def test_a_cast_keeps_the_rotary_angles(tiny_drafter, tiny_target):
    """In bfloat16 the module turns queries by the same angles; position 50 would be off by 0.1 otherwise."""
    table = tiny_drafter.to(torch.bfloat16)._turns.view(torch.float32)
    assert torch.equal(torch.view_as_complex(table[:64]), tiny_target.turns[:64])


def test_no_request_gives_no_draft(tiny_drafter, tiny_config):
    """An empty batch passes through."""
    none = torch.zeros(0, dtype=torch.int64)
    features = torch.zeros(0, tiny_config.features)
    drafts, doubts = tiny_drafter.draft(features, none, none, lambda layer, queries: queries)
    assert drafts.shape == (0, 4) and doubts.shape == (0, 4, 2)


@pytest.mark.parametrize("change", [{"heads": 3}, {"draft_vocabulary": 0}, {"cross_layers": ()}, {"rank": 0}])
def test_sizes_that_contradict_one_another_are_refused(tiny_config, change):
    """A configuration checks itself."""
    from dataclasses import replace

    from adaverify_contracts import ModelFileError

    with pytest.raises(ModelFileError, match="not usable"):
        replace(tiny_config, **change)
