"""A profiler's trace alone: no metrics, and step records from its annotations."""

from diagnose.dialects.base import Dialect

TRACE = Dialect(name="torch trace", prefix="", counters={}, gauges={}, histograms={})
