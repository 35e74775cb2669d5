"""Hugging Face transformers: `generate` over the whole batch."""

import argparse

import torch
import transformers  # type: ignore[import-not-found, unused-ignore]

from tests.benchmarks.engines import subject


def load(args: argparse.Namespace) -> tuple[str, subject.Generate]:
    torch.set_num_threads(args.threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)

    def generate(prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        batch = torch.tensor(prompts)
        with torch.inference_mode():
            output = model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        tokens: list[list[int]] = output[:, batch.shape[1] :].tolist()
        return tokens

    return transformers.__version__, generate


if __name__ == "__main__":
    subject.main(load)
