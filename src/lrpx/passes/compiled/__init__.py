"""A pass traced once and fused."""
