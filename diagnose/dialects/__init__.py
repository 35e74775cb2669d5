"""One module per engine: which metric, under which labels, is which canonical signal, and what exactly it counts."""
