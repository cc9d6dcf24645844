"""ALTI-Logit and its relatives: what attention adds to a logit, carried to the input through token mixing."""
