"""The half of the engine that holds tensors: weights, KV memory, attention, sampling."""
