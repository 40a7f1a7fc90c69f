"""Prompt lookup on the device: what followed the longest earlier match of a request's last tokens."""
