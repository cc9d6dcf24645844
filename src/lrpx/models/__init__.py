"""From a name to a model: loading, where its weights are, what it reads."""
