"""Training of the block drafter: data written by the target, one-pass training, export, evaluation."""
