"""How often the diagnosis is right: labelled windows of simulated engines, judged by the real rules, beside rivals.

`python -m tests.accuracy` prints the table; docs/accuracy.md says how to read it.
"""
