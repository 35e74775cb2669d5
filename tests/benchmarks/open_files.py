"""Room for thousands of sockets."""

import resource


def allow_many_files() -> int:
    """Raises the soft limit of open files to the hard one, and gives it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
