"""From what any source says about a server to verdicts with evidence, and a decision.

sources -> entries -> `observation` -> `windows` (through a dialect) -> signals -> hypotheses -> verdicts -> decision -> report.
"""
