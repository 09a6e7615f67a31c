"""Loads a snapshot's model and tokenizer with Transformers, from local files only.

Knows the snapshot's layout (the directory that the fetch step produced) and nothing of where it came from.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import ExportError

if TYPE_CHECKING:
    import torch

EAGER = "eager"

# Transformers documents no common base for what a bad snapshot makes it raise: hence the broad excepts below.


def torch_dtype(dtype: str) -> torch.dtype:
    """The torch dtype of a manifest's ``dtype``: fp32, fp16 or bf16."""
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]


def load_model(snapshot: Path, dtype: str, attention: str = EAGER) -> Any:
    """The causal LM in evaluation mode, weights cast to ``dtype``, on the CPU.

    ``attention`` is a Transformers attention implementation: ``eager`` for the reference model, or one that
    was registered before. Raises ExportError when the snapshot is no causal LM that Transformers knows, or
    when its weights leave parameters of the model unfilled.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            snapshot,
            dtype=torch_dtype(dtype),
            attn_implementation=attention,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            # Reported below with the missing ones, by name.
            ignore_mismatched_sizes=True,
        )
    except Exception as error:
        if isinstance(error, KeyError) and error.args == (attention,):
            raise ExportError(
                f"model type '{load_config(snapshot).model_type}': its attention is not pluggable: Transformers "
                "chooses among attention classes of the model's own, and the off-graph cache cannot take their place. "
                "It cannot be exported with the off-graph cache."
            ) from error
        raise ExportError(
            f"{snapshot}: Transformers cannot load it as a causal LM: {_first_line(error)} "
            "Check that its files are whole, and that the installed Transformers knows its architecture."
        ) from error
    unfilled = sorted(set(info["missing_keys"]) | {key for key, *_ in info.get("mismatched_keys", ())})
    if unfilled:
        raise ExportError(
            f"{snapshot}: the checkpoint has no matching weights for {', '.join(unfilled[:5])}"
            f"{f' and {len(unfilled) - 5} more' if len(unfilled) > 5 else ''}; they would be random. "
            "The checkpoint is incomplete, or it belongs to another architecture than its config.json says."
        )
    return model.eval().requires_grad_(False)


def load_config(snapshot: Path) -> Any:
    """The language model's configuration alone, out of a composite one where need be: no weights are read.

    Raises ExportError when it cannot be read, or belongs to an encoder-decoder, or to a model type that has no causal
    LM.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    try:
        config = AutoConfig.from_pretrained(snapshot, local_files_only=True, trust_remote_code=False)
        text_config = config.get_text_config()
    except Exception as error:
        raise ExportError(f"{snapshot}: its config.json cannot be used: {_first_line(error)}") from error
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        kind = "an encoder-decoder" if getattr(config, "is_encoder_decoder", False) else "no causal LM"
        raise ExportError(
            f"model type '{config.model_type}': it is {kind}; expected a model type that Transformers has a causal LM "
            "for. It cannot be exported."
        )
    if getattr(config, "is_encoder_decoder", False):
        raise ExportError(
            f"model type '{config.model_type}': its configuration is that of an encoder-decoder, whose decoder reads "
            "what the encoder made of another text; expected a decoder alone (is_encoder_decoder: false). It cannot be "
            "exported."
        )
    return text_config


def load_tokenizer(snapshot: Path) -> Any:
    """The snapshot's tokenizer, chat template included where the model has one."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(snapshot, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ExportError(f"{snapshot}: its tokenizer cannot be loaded: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    first, *others = (str(error).strip() or type(error).__name__).splitlines()
    if first.endswith(":") and others:
        first = f"{first} {others[0].strip()}"
    return first.rstrip(".!:") + "."
