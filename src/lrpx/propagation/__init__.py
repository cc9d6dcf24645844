"""The heart: rules that change Jacobians, and the mode that applies them."""
