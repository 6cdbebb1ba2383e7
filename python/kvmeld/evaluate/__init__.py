"""Which policy, at which budget, does *your* model answer well from? python -m kvmeld.evaluate MODEL

The model reads passages of prose with facts between them. Each policy compresses the KV cache to each budget, and then the
model is asked for the facts, continues sentences of the passage, and reads on.
"""
