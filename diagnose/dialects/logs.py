"""The log tables this version knows."""

from diagnose.dialects.common_log import COMMON_LOG
from diagnose.dialects.log import LogTable
from diagnose.dialects.vllm_log import VLLM_LOG

ENGINE_LOGS: tuple[LogTable, ...] = (VLLM_LOG,)
LOG_TABLES: tuple[LogTable, ...] = (*ENGINE_LOGS, COMMON_LOG)
