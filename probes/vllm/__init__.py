"""The probe for vLLM: a plugin of its process, loaded through vLLM's own entry points. See docs/vllm.md.

EngineCore process: hooks on scheduler and block pool, step records, a side port on loopback (`engine`, `side_port`). Worker
process: wall and CPU time of each forward pass (`worker`). API server: our metrics on vLLM's page (`stat_logger`), and our
debug routes where vLLM was told to allow them (`routes`). `plugin` decides whether any of it is put in place.
"""
