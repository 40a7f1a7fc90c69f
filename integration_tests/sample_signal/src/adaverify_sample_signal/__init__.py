"""A confidence signal for adaverify."""
