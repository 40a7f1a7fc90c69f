"""From recorded truth to the rows of a step, and from a step's admitted drafts to what was accepted."""
