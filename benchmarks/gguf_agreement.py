"""A GGUF file read by DICE and by `transformers`: token ids and logits in float32, and how the model goes on.

    python benchmarks/gguf_agreement.py MODEL.gguf --out results.json

The two readers share nothing but how the library `gguf` dequantises. Needs transformers (extra `baselines`).
"""

from __future__ import annotations

import argparse
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as FastTokenizer

from dice.decode.generate import DecodeConfig, generate
from dice.files.atomic import write_json
from dice.model.gguf import GGUFFile
from dice.model.sdar import SDAR

TEXTS = (
    "The capital of France is",
    "def add(a, b):\n    return a + b  # 12345",
    "Once upon a time, in 1984, there wasn't a wolf\r\n\n  and it's 3.14! \u00e9migr\u00e9 \u6f22\u5b57 <|im_end|>x",
    "__global__ void relu(const float* x, float* y, int n) {\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n",
)
NEW_TOKENS = 12


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    file = GGUFFile(args.model)
    encoder, _, _ = file.tokenizer()
    model = file.model(torch.float32)
    theirs, their_tokenizer = of_transformers(args.model)
    rows = [compare(text, encoder, model, theirs, their_tokenizer) for text in TEXTS]
    names = ("torch", "transformers", "gguf")
    result = {
        "command": f"python benchmarks/gguf_agreement.py {args.model.name}",
        "machine": {"cpu": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {name: version(name) for name in names},
        "family": model.config.family,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "texts": rows,
    }
    write_json(args.out, result)
    for row in rows:
        print(f"ids equal: {row['ids_equal']}, logits differ by {row['largest_difference']:.1e}: {row['goes_on']!r}")
    return 0 if all(row["ids_equal"] for row in rows) else 1


def of_transformers(path: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(**where)


def compare(text: str, encoder: FastTokenizer, model: SDAR, theirs: Any, their_tokenizer: Any) -> dict[str, Any]:
    ids = encoder.encode(text).ids
    batch = torch.tensor([ids])
    with torch.no_grad():
        ours, others = model(batch), theirs(batch).logits
    (trace,) = generate(model, [ids], DecodeConfig(max_new_tokens=NEW_TOKENS, temperature=0.0))
    return {
        "text": text,
        "tokens": len(ids),
        "ids_equal": ids == their_tokenizer(text)["input_ids"],
        "largest_difference": float((ours - others).abs().max()),
        "largest_logit": float(others.abs().max()),
        "same_best_token": float((ours.argmax(-1) == others.argmax(-1)).float().mean()),
        "goes_on": encoder.decode(list(trace.response_ids)),
    }


if __name__ == "__main__":
    raise SystemExit(main())
