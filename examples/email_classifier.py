"""A classifier of texts in a CSV file: which department is an email for?

    python scripts/train.py --config examples/email_classifier.py --multi_gpu --set epochs=15 --set batch_size=16 \\
        --set learning_rate=3e-3 --set validation_split=0.2 --set validate_every="5 epochs"

The file has the columns text and label; give your own by `--set family_options.file=PATH`. There is no data set for
validation, so `validation_split` holds a part of the training data out.
"""

from __future__ import annotations

import csv
import re
import zlib
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from tandem import Section, setting

Email = dict[str, Tensor]


class Options(Section):
    """Fields in the window, and `--set family_options.width=64` on the command line."""

    file: str = setting("", title="CSV file", help="With the columns text and label. Empty: emails.csv beside this.")
    width: int = setting(32, title="Width", help="Features of each word.", ge=1)
    words: int = setting(4096, title="Words", help="Size of the vocabulary; words are numbered by a hash.", ge=2)
    dropout: float = setting(0.2, title="Dropout", help="Share of features that is dropped in training.", ge=0, lt=1)


def read_rows(options: Options) -> list[tuple[str, str]]:
    """The texts and labels of the file."""
    path = Path(options.file) if options.file else Path(__file__).with_name("emails.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file)]


class Emails(Dataset[Email]):
    """The numbers of the words, and that of the label."""

    def __init__(self, options: Options) -> None:
        self.rows, self.words = read_rows(options), options.words
        self.labels = sorted({label for _, label in self.rows})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Email:
        text, label = self.rows[index]
        words = re.findall(r"\w+", text.lower()) or [""]
        numbers = [1 + zlib.crc32(word.encode()) % (self.words - 1) for word in words]  # 0 is padding
        return {"words": torch.tensor(numbers), "label": torch.tensor(self.labels.index(label))}


class Classifier(nn.Module):
    """The mean of what a recurrent network says after each word."""

    def __init__(self, options: Options, labels: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(options.words, options.width, padding_idx=0)
        self.recurrent = nn.GRU(options.width, options.width, batch_first=True)
        self.dropout, self.head = nn.Dropout(options.dropout), nn.Linear(options.width, labels)

    def forward(self, words: Tensor) -> Tensor:
        """Logits [B, labels] of words [B, T], padded with 0."""
        is_word = (words > 0).unsqueeze(2)
        states = self.recurrent(self.embedding(words))[0] * is_word
        logits: Tensor = self.head(self.dropout(states.sum(dim=1) / is_word.sum(dim=1)))
        return logits


def build_model(options: Options) -> nn.Module:
    return Classifier(options, len({label for _, label in read_rows(options)}))


def build_data(options: Options) -> Emails:
    return Emails(options)


def collate(emails: list[Email]) -> Email:
    words = pad_sequence([email["words"] for email in emails], batch_first=True)
    return {"words": words, "label": torch.stack([email["label"] for email in emails])}


def loss(model: nn.Module, batch: Email) -> Tensor:
    return F.cross_entropy(model(batch["words"]), batch["label"], reduction="none")


def metrics(model: nn.Module, batch: Email) -> dict[str, Tensor]:
    return {"accuracy": model(batch["words"]).argmax(dim=1) == batch["label"]}
