"""Time prompt lookup a request and step, on text that repeats in part. Run: python ngram.py.

The text is phrases drawn with replacement and cut at random, mixed with noise: about half of the reached
positions are accepted. Drafts are checked against a plain search for the longest match before any time is
printed.
"""

from __future__ import annotations

from time import process_time

import numpy as np
import torch

from adaverify_contracts import Limits
from adaverify_engine.drafters import NgramDrafter

REQUESTS, STEPS, K = 16, 120, 7


def make_text(random, length):
    phrases = [random.integers(0, 500, size=20).tolist() for _ in range(8)]
    text = []
    while len(text) < length:
        text += phrases[random.integers(8)][: random.integers(4, 21)]
        text += random.integers(0, 500, size=3).tolist()
    return text[:length]


def check(random):
    """Refuse to time a drafter that does not continue its longest match."""
    text = make_text(random, 300)
    drafter = NgramDrafter(Limits(1, 1, 4096, 16), torch.device("cpu"))
    for end in range(20, 300, 7):
        drafter.start(0, text[:end])
        batch = drafter.propose([0], np.array([1]))
        best = 0
        allowed = set()
        for place in range(1, end):
            length = 0
            while length < min(place, 16) and text[place - 1 - length] == text[end - 1 - length]:
                length += 1
            if length > best:
                best, allowed = length, set()
            if length and length == best:
                allowed.add(text[place])
        drafted = int(batch.tokens[0, 0])
        assert (drafted in allowed) if best else drafted == -1, (end, drafted, allowed)


def main() -> None:
    random = np.random.default_rng(0)
    check(random)
    drafter = NgramDrafter(Limits(REQUESTS, K, 4096, 16), torch.device("cpu"))
    texts = [make_text(random, 256 + STEPS * (K + 1)) for _ in range(REQUESTS)]
    at = [256] * REQUESTS
    for slot, text in enumerate(texts):
        drafter.start(slot, text[:256])
    proposing = extending = 0.0
    accepted = 0
    for _ in range(STEPS):
        begin = process_time()
        batch = drafter.propose(range(REQUESTS), np.full(REQUESTS, K))
        proposing += process_time() - begin
        for slot, text in enumerate(texts):
            drafts = batch.tokens[slot, : int(batch.scheduled[slot])].tolist()
            count = 0
            while count < len(drafts) and drafts[count] == text[at[slot] + count]:
                count += 1
            new = text[at[slot] : at[slot] + count + 1]
            begin = process_time()
            drafter.extend(slot, new)
            extending += process_time() - begin
            at[slot] += len(new)
            accepted += count
    steps = REQUESTS * STEPS
    print(f"{REQUESTS} requests, K = {K}, accepted length {1 + accepted / steps:.2f}")
    each = 1e6 / steps
    print(f"propose {proposing * each:.1f} us, extend {extending * each:.1f} us a request-step (CPU time)")


if __name__ == "__main__":
    main()
