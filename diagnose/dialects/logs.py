"""The log tables this version knows."""

from diagnose.dialects.common_log import COMMON_LOG
from diagnose.dialects.llamacpp_log import LLAMACPP_LOG
from diagnose.dialects.lmcache_log import LMCACHE_LOG
from diagnose.dialects.lmdeploy_log import LMDEPLOY_LOG
from diagnose.dialects.log import LogTable
from diagnose.dialects.sglang_log import SGLANG_LOG
from diagnose.dialects.stallscope_log import STALLSCOPE_LOG
from diagnose.dialects.tensorrt_llm_log import TENSORRT_LLM_LOG
from diagnose.dialects.tgi_log import TGI_LOG
from diagnose.dialects.vllm_log import VLLM_LOG

ENGINE_LOGS: tuple[LogTable, ...] = (
    VLLM_LOG,
    SGLANG_LOG,
    LLAMACPP_LOG,
    TENSORRT_LLM_LOG,
    LMDEPLOY_LOG,
    TGI_LOG,
    STALLSCOPE_LOG,
)
LOG_TABLES: tuple[LogTable, ...] = (*ENGINE_LOGS, LMCACHE_LOG, COMMON_LOG)
