"""Prefill and decode in separate processes: KV blocks are streamed from one to the other while later chunks are computed."""
