"""Pytest plugin for adaverify: isolated manager, fake capabilities, conformance kit for plugin authors."""
