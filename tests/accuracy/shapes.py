"""The simulated servers: one like a small CPU engine, two like GPUs, of which `wide` is held out of tuning."""

from tests.accuracy.scenario import Shape

SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape(
            name="small",
            budget=512,
            max_sequences=64,
            kv_blocks=4000,
            block_size=16,
            weight_read_us=9000,
            overhead_us=3000,
            per_sequence_us=100,
            per_context_us=0.25,
            per_prompt_token_us=45,
            per_pair_us=0.0015,
            schedule_us=150,
            noise=0.04,
            memory_share=0.6,
            has_cpu_time=True,
        ),
        Shape(
            name="large",
            budget=2048,
            max_sequences=128,
            kv_blocks=16_000,
            block_size=16,
            weight_read_us=8000,
            overhead_us=2000,
            per_sequence_us=20,
            per_context_us=0.04,
            per_prompt_token_us=10,
            per_pair_us=0.0002,
            schedule_us=250,
            noise=0.03,
            memory_share=0.75,
            has_cpu_time=False,
        ),
        Shape(
            name="wide",
            budget=4096,
            max_sequences=256,
            kv_blocks=12_000,
            block_size=32,
            weight_read_us=10_000,
            overhead_us=3000,
            per_sequence_us=15,
            per_context_us=0.03,
            per_prompt_token_us=8,
            per_pair_us=0.0001,
            schedule_us=400,
            noise=0.06,
            memory_share=0.7,
            has_cpu_time=False,
        ),
    )
}
