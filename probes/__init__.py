"""The ground floor: measured facts about a serving engine, and their types. Imports none of the other rooms.

The thin half (`records`, `recorder`, `locks`, `optime`, `catalog`, `wire`, `recording`, `exports`, `gpu`, `embed`) is stdlib only
and may be used on a hot path; the thick half (`prometheus`, `otlp`, `nvml`, `embed_server`) is imported only where a process is
put together.
"""
