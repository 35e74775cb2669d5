"""Tells people what happens. A notification that fails is a note in the journal, and never stops a runbook."""

import sys
from collections.abc import Callable, Sequence

import urllib3

from diagnose.units import printable
from probes.extras import not_installed
from runbooks.errors import ConfigError
from runbooks.response.config import Notifier

Send = Callable[[str, str], None]
"""Title and text. Raises whatever its library raises."""


def make_senders(notifiers: Sequence[Notifier]) -> list[tuple[str, Send]]:
    """Raises ConfigError when apprise is asked for and not installed."""
    return [(notifier.kind, _sender(notifier)) for notifier in notifiers]


def tell(senders: Sequence[tuple[str, Send]], title: str, text: str) -> list[str]:
    """What failed, one sentence per channel."""
    failures = []
    for name, send in senders:
        try:
            send(title, text)
        except Exception as error:  # noqa: BLE001 - any library, any error: it is kept in the journal, and the runbook goes on
            failures.append(f"notification by {name} failed: {type(error).__name__}: {printable(str(error))[:200]}")
    return failures


def _sender(notifier: Notifier) -> Send:
    if notifier.kind == "stdout":
        return _print
    if notifier.kind == "webhook":
        return lambda title, text: _post(notifier.url, title, text)
    return _apprise(notifier.url)


def _print(title: str, text: str) -> None:
    sys.stdout.write(f"{printable(title)}: {printable(text)}\n")
    sys.stdout.flush()


def _post(url: str, title: str, text: str) -> None:
    answer = urllib3.request("POST", url, json={"title": title, "text": text}, timeout=5.0, retries=False)
    if not 200 <= answer.status < 300:
        raise ConnectionError(f"answered HTTP {answer.status}")


def _apprise(url: str) -> Send:
    try:
        import apprise
    except ModuleNotFoundError:
        raise ConfigError(f"notify: {not_installed('apprise', 'notify')}") from None
    channel = apprise.Apprise()
    if not channel.add(url):
        raise ConfigError("notify: apprise does not know this kind of url")

    def send(title: str, text: str) -> None:
        if not channel.notify(title=title, body=text):
            raise ConnectionError("apprise could not deliver it")

    return send
