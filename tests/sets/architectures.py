"""Eleven architectures as `transformers` builds them from a configuration: small, with random weights.

Each is given a batch with labels and returns its loss. Nothing is downloaded.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers
from torch import Tensor

from tests.sets import Given, Make

WORDS, LENGTH, PIXELS, BATCH = 96, 12, 32, 4


def _given(name: str, batch: dict[str, Tensor], **settings: object) -> Given:
    """A model by the name of its class; its configuration has the name of the family."""
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**settings)).train()
    return Given(model, batch, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3))


def _text() -> dict[str, Tensor]:
    """Rows of which two are padded at their ends; what is padded has no label."""
    ids = torch.randint(4, WORDS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 8:] = mask[3, 10:] = 0
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": ids.where(mask > 0, -100)}


def _images() -> dict[str, Tensor]:
    pixels = torch.randn(BATCH, 3, PIXELS, PIXELS, generator=torch.Generator().manual_seed(1))
    return {"pixel_values": pixels, "labels": torch.arange(BATCH) % 3}


def gpt2() -> Given:
    sizes = {"n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return _given("GPT2LMHeadModel", _text(), vocab_size=WORDS, bos_token_id=0, eos_token_id=0, **sizes)


def llama() -> Given:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return _given("LlamaForCausalLM", _text(), vocab_size=WORDS, **sizes, **heads)


def mamba() -> Given:
    text = _text()
    del text["attention_mask"]
    return _given(
        "MambaForCausalLM", text, vocab_size=WORDS, hidden_size=32, state_size=8, num_hidden_layers=2
    )


def t5() -> Given:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    return _given("T5ForConditionalGeneration", _text(), vocab_size=WORDS, decoder_start_token_id=0, **sizes)


def mixtral() -> Given:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_local_experts": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return _given(
        "MixtralForCausalLM", _text(), vocab_size=WORDS, output_router_logits=True, **sizes, **heads
    )


def whisper() -> Given:
    sides = {}
    for side in ("encoder", "decoder"):
        sides |= {f"{side}_layers": 2, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 64}
    sizes = {"d_model": 32, "num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 32}
    words = {name: 1 for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")}
    sound = torch.randn(BATCH, 16, 40, generator=torch.Generator().manual_seed(1))
    batch = {"input_features": sound, "labels": _text()["labels"]}
    return _given("WhisperForConditionalGeneration", batch, vocab_size=WORDS, **sides, **sizes, **words)


def vit() -> Given:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return _given(
        "ViTForImageClassification", _images(), image_size=PIXELS, patch_size=8, num_labels=3, **sizes
    )


def resnet() -> Given:
    sizes = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 2]}
    return _given("ResNetForImageClassification", _images(), layer_type="basic", num_labels=3, **sizes)


def convnext() -> Given:
    sizes = {"hidden_sizes": [16, 32], "depths": [1, 2], "num_stages": 2, "patch_size": 2}
    return _given("ConvNextForImageClassification", _images(), drop_path_rate=0.1, num_labels=3, **sizes)


def efficientnet() -> Given:
    blocks = {"in_channels": [32, 16], "out_channels": [16, 24], "kernel_sizes": [3, 5], "strides": [1, 2]}
    sizes = {"num_block_repeats": [1, 2], "expand_ratios": [1, 6], "depthwise_padding": []}
    sizes |= {"width_coefficient": 0.1, "depth_coefficient": 1.0, "hidden_dim": 128}
    return _given(
        "EfficientNetForImageClassification", _images(), image_size=PIXELS, num_labels=3, **blocks, **sizes
    )


def swin() -> Given:
    sizes = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "patch_size": 2}
    return _given("SwinForImageClassification", _images(), image_size=PIXELS, num_labels=3, **sizes)


ARCHITECTURES: dict[str, Make] = {
    make.__name__: make
    for make in (
        gpt2, llama, mamba, t5, vit, whisper, mixtral, resnet, convnext, efficientnet, swin
    )
}  # fmt: skip
