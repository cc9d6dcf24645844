"""Texts -> token ids -> padded batches, and which prediction is explained."""
