"""Queries and weights of tokens, laid out by slot."""
