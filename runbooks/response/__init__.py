"""An alert comes in: evidence, a decision, a bounded act, proof that it helped, a journal of all of it."""
