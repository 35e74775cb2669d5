"""The webhook of Alertmanager (version 4), as far as it is read."""

import msgspec

from runbooks.errors import RunbookError

VERSION = "4"


class Alert(msgspec.Struct, frozen=True):
    status: str
    labels: dict[str, str]
    fingerprint: str
    startsAt: str  # noqa: N815 - the name on the wire
    annotations: dict[str, str] = {}

    @property
    def name(self) -> str:
        return self.labels.get("alertname", "")

    @property
    def is_firing(self) -> bool:
        return self.status == "firing"


class Notification(msgspec.Struct, frozen=True):
    """One POST: the alerts of a group that fire or are resolved."""

    version: str
    alerts: list[Alert]
    groupKey: str = ""  # noqa: N815
    truncatedAlerts: int = 0  # noqa: N815


class BadNotification(RunbookError):
    pass


def decode(body: bytes) -> Notification:
    """Raises BadNotification that names the place."""
    try:
        notification = msgspec.json.decode(body, type=Notification)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:  # ValidationError is one
        raise BadNotification(f"not an Alertmanager webhook: {error}") from None
    if notification.version != VERSION:
        raise BadNotification(f"webhook version {notification.version!r}; this receiver reads version {VERSION}")
    for alert in notification.alerts:
        if not alert.fingerprint or alert.status not in ("firing", "resolved"):
            raise BadNotification("an alert without a fingerprint, or with a status other than firing and resolved")
    return notification
