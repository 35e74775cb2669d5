"""The same traces through our policy and through the peers' own code, each in its own environment.

Every module here but `ours` runs under a peer's interpreter: standard library and that peer's packages only.
"""
