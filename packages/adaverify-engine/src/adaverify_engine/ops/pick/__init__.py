"""The token that every logits row decides: the best one, or one drawn with the noise of its position."""
