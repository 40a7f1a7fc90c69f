"""A decode strategy for adaverify."""
