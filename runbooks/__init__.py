"""Acting on a diagnosis: drills that induce a labelled condition on a live engine."""
