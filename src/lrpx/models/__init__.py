"""Load a model by name; where its weights are; which inputs it takes."""
