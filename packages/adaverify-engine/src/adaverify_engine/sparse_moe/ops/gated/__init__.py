"""silu(gate) x up of routed and shared experts."""
