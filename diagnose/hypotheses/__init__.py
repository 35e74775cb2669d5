"""One hypothesis per file. Rules are pure: they see a `Case` and a `Policy`, no clock, no network, no global."""
