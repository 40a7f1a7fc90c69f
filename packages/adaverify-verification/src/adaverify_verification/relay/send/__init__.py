"""Confidences straight from a kernel into the ring, for steps that run from a graph."""
