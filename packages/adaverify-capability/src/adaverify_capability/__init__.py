"""Probes one device by executing kernels with known answers and reports what it can really do."""
