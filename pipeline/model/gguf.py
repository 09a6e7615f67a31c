"""A GGUF file becomes an ordinary snapshot: weights dequantized to float32, tokenizer and configuration converted."""

from __future__ import annotations

from pathlib import Path

from pipeline.errors import FetchError


def to_snapshot(gguf: Path, out: Path) -> None:
    """Writes config.json, generation_config.json, model.safetensors and the tokenizer's files to ``out``.

    float32 holds every value that GGUF's block formats can express, so nothing is rounded here. Raises FetchError when
    Transformers cannot read the file or leaves parameters of the model unfilled.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    directory, name = str(gguf.parent), gguf.name
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=name, local_files_only=True)
        model, info = AutoModelForCausalLM.from_pretrained(
            directory, gguf_file=name, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except Exception as error:
        # The readers below Transformers document no common base; tokenizers raises plain Exception.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise FetchError(
            f"{name}: Transformers cannot read this GGUF file: {reason}. Its architecture or quantization may not be "
            "supported; use the model's safetensors checkpoint."
        ) from error
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:5])
        raise FetchError(f"{name}: it has no weights for {missing}; they would be random. The file is incomplete.")
    tokenizer.save_pretrained(out)
    # The loaded model is marked as quantized and refuses to be saved; its tensors are plain.
    config = model.config
    del config.quantization_config
    config.save_pretrained(out)
    model.generation_config.save_pretrained(out)
    tied = set(model.all_tied_weights_keys)
    state = {key: tensor.contiguous() for key, tensor in model.state_dict().items() if key not in tied}
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
