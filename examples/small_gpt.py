"""A small GPT that learns to write, letter by letter, from a folder of .txt files.

    python scripts/train.py --config examples/small_gpt.py --multi_gpu --set epochs=20 --set batch_size=16 \\
        --set learning_rate=1e-3 --set validate_every="1 epoch" --set family_options.folder=PATH

Without a folder it learns from the Markdown files of Tandem's own documentation. All sequences are equally long, so
the mean over the letters of a batch is also the mean over its samples, as a loss has to be.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from tandem import Section, setting

LETTERS = 256  # bytes, so that every text can be read


class Options(Section):
    """Fields in the window, and `--set family_options.layers=4` on the command line."""

    folder: str = setting("", title="Folder", help="Where the .txt files are. Empty: Tandem's documentation.")
    context: int = setting(64, title="Context", help="How many letters it sees.", unit="letters", ge=2)
    head_width: int = setting(16, title="Head width", help="Features of each of the 4 attention heads.", ge=1)
    layers: int = setting(2, title="Layers", help="Transformer blocks.", ge=1)
    dropout: float = setting(0.1, title="Dropout", help="Share of features that is dropped in training.", ge=0, lt=1)


class Text(Dataset[Tensor]):
    """Pieces of `context` + 1 letters, one after the other."""

    def __init__(self, letters: Tensor, context: int) -> None:
        self.letters, self.context = letters, context

    def __len__(self) -> int:
        return (len(self.letters) - 1) // self.context

    def __getitem__(self, index: int) -> Tensor:
        return self.letters[index * self.context : (index + 1) * self.context + 1].long()


class GPT(nn.Module):
    """A decoder-only transformer."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        width = 4 * options.head_width
        self.letter, self.place = nn.Embedding(LETTERS, width), nn.Embedding(options.context, width)
        block = nn.TransformerEncoderLayer(
            width, 4, 4 * width, options.dropout, F.gelu, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, options.layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, LETTERS, bias=False)
        nn.init.normal_(self.letter.weight, std=0.02)
        self.head.weight = self.letter.weight  # tied

    def forward(self, letters: Tensor) -> Tensor:
        """Logits [B, T, letters] of the letter after each of `letters` [B, T]."""
        length = letters.shape[1]
        x = self.letter(letters) + self.place(torch.arange(length, device=letters.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=x.device, dtype=x.dtype)
        logits: Tensor = self.head(self.blocks(x, mask, is_causal=True))
        return logits


def build_model(options: Options) -> nn.Module:
    return GPT(options)


def build_data(options: Options) -> tuple[Text, Text]:
    folder = Path(options.folder) if options.folder else Path(__file__).parents[1] / "docs"
    files = sorted(folder.rglob("*.txt" if options.folder else "*.md"))
    if not files:
        raise FileNotFoundError(f"there is no .txt file in {folder}")
    text = b"\n\n".join(file.read_bytes() for file in files)
    letters = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    last = len(letters) // 10
    return Text(letters[:-last], options.context), Text(letters[-last:], options.context)


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def metrics(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    right = model(batch[:, :-1]).argmax(dim=2) == batch[:, 1:]
    return {"accuracy": right.double().mean(dim=1)}
