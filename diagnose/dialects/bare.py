"""Sources without a metrics page: a profiler's trace alone, and the threads of a process alone."""

from diagnose.dialects.base import Dialect

TRACE = Dialect(name="torch trace", prefixes=())
HOST = Dialect(name="host probe", prefixes=())
