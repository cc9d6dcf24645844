"""One forward and backward pass of a batch, and the ways to run it."""
