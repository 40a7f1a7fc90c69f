"""Trace format, simulator, report and plots for adaptive verification."""
