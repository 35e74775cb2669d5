"""What all tests share."""

import signal

from hypothesis import HealthCheck, settings

# No test may fail because the machine is slow: examples have no deadline, and slow drawing is no fault of the test.
settings.register_profile("stallscope", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("stallscope")

# A job started in the background inherits SIGINT as ignored, and would hand that on to the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
