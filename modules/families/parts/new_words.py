"""Teaching a family's prompts a new word, and what is to be said of words that are not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from modules.config import ConfigError
from modules.families.parts.prompts import Prompts
from modules.families.parts.text_encoders import TextEncoder, grow_table

READ_IN_A_WINDOW = 75  # tokens of a prompt, beside begin and end


def learn_word(
    prompts: Prompts, encoders: Mapping[str, TextEncoder], token: str, vectors: int, init: str
) -> tuple[dict[str, list[int]], list[str]]:
    """The numbers of `token`'s rows by the names of the token tables that got them, and sentences to tell.

    The rows begin as those of the words `init`, or of "*". Raises ConfigError where the token is a word already.
    """
    for name, tokenizer in prompts.tokenizers.items():
        if token in tokenizer.get_vocab() or len(prompts.tokens(name, token)) == 1:
            raise ConfigError(
                f"embedding_token is {token!r}, which the tokenizer of {name} knows as a word already.",
                "Choose a new one, such as <my-cat>.",
            )
    begin = {name: prompts.tokens(name, init or "*") for name in prompts.tokenizers}
    remarks = []
    if (pieces := max(map(len, begin.values()))) > vectors:
        remarks.append(
            f"embedding_init is {init!r}, which the text encoder reads as {pieces} pieces, and embedding_vectors is "
            f"{vectors}: {token} begins with the first of them only. Use one plain word such as cat, or more vectors."
        )
    learned = prompts.learn(token, vectors).items()
    tables = {f"{name}.{grow_table(encoders[name], numbers, begin[name])}": numbers for name, numbers in learned}
    return tables, remarks


def cut_off(prompts: Prompts, captions: Sequence[str]) -> list[str]:
    """A sentence about the captions that are longer than what is read; none where all are read whole."""
    room = READ_IN_A_WINDOW * prompts.windows
    long = [caption for caption in captions if len(caption.encode()) > room]
    cut = [caption for caption in long if prompts.cut(caption)]
    if not cut:
        return []
    advice = "raise prompt_windows" if prompts.windows > 1 else "set family_options.long_prompts to chunk"
    many = "1 text is" if len(cut) == 1 else f"{len(cut)} texts are"
    return [f"{many} longer than {room} tokens, such as {cut[0][:60]!r}...; the rest is not read ({advice})."]
