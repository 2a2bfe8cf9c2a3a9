"""Tiny encoders with random weights, written as the folders that real ones come in."""

import json
from pathlib import Path

import torch
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizerFast,
    ViTConfig,
    ViTImageProcessorPil,
    ViTModel,
)

WORDS = ["good", "bad", "film", "a", "the", "very", "dull", "is", "##ly", "!"]


def write_vit(folder: Path, *, num_channels: int = 3) -> Path:
    """Two layers of width 16; images become 24 x 24, in patches of 8."""
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=24,
        patch_size=8,
        num_channels=num_channels,
        initializer_range=0.5,
    )
    ViTModel(config).save_pretrained(folder)
    processor = ViTImageProcessorPil(
        size={"height": 24, "width": 24},
        resample=3,
        image_mean=[0.4, 0.5, 0.6][:num_channels],
        image_std=[0.2, 0.3, 0.25][:num_channels],
    )
    processor.save_pretrained(folder)
    return folder


def write_sentence_transformer(folder: Path) -> Path:
    """Two layers of width 16, mean pooling, unit length."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=5 + len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        initializer_range=0.5,
    )
    BertModel(config).save_pretrained(folder)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: index for index, word in enumerate([*special, *WORDS])}
    BertTokenizerFast(vocab=vocabulary, model_max_length=32).save_pretrained(folder)
    parts = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": path,
            "type": f"sentence_transformers.models.{t}",
        }
        for index, (path, t) in enumerate(parts.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder
