"""The dashboard in a browser, on loopback only: every tab is a process of its own, and there is no login."""

from diagnose.errors import SourceError
from probes.extras import not_installed


def serve(command: str, port: int) -> None:
    """Blocks until interrupted. Raises SourceError when the extra is not installed or the port is taken."""
    try:
        from textual_serve.server import Server
    except ImportError:
        raise SourceError(not_installed("textual-serve, which --web needs,", "web")) from None
    try:
        Server(command, host="127.0.0.1", port=port, title="stallscope").serve()
    except OSError as error:
        raise SourceError(f"127.0.0.1:{port}: cannot be served: {error.strerror or error}") from None
