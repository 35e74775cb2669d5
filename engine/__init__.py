"""A paged-KV LLM engine whose every scheduling decision and nanosecond can be seen at its source.

Policy (`request`, `block_pool`, `prefix_cache`, `budget`, `scheduler`) is pure Python; `model` and `runner` hold the tensors;
`core` joins them; `server` puts the process together. Nobody imports this room: the toolkit talks to it over the wire.
"""
