"""The log of stallscope's own engine: what it says of failures. Its load it says in metrics and step records."""

from diagnose.dialects.log import EventLine, LogTable
from diagnose.dialects.stallscope import STALLSCOPE

STALLSCOPE_LOG = LogTable(
    engine=STALLSCOPE.name,
    events=(
        EventLine("out_of_memory", "step failed (oom)"),
        EventLine("engine_dead", "engine dead:"),
        EventLine("connection_dropped", "connection dropped in the middle of a stream"),
    ),
    silent="stallscope's engine writes none: scrape its metrics",
)
