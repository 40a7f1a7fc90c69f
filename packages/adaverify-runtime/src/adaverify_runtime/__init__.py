"""Settings, plugin manager, strategy selection and start-up report; assembles a verifier."""
