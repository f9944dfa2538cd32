"""The part of scripts/annotate.py that runs a model: choosing the images, loading it, and asking it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from modules.annotation import Header, Message, Proposal, ProposalSet
from modules.annotators.annotator import Annotator
from modules.annotators.model_folder import find_device, find_dtype, model_folder
from modules.annotators.propose import Wording, images_left, propose
from modules.annotators.select import FoundImage, Selection, select_images
from modules.files import remove_tree
from modules.run.exit_codes import FAILED, FINISHED, NO_DATA
from scripts.annotate_events import Reporter
from scripts.annotate_options import header_of


def make_proposals(options: argparse.Namespace, reporter: Reporter) -> tuple[ProposalSet | None, int]:
    """The proposals for a command line, None if no image is to be asked about, and an exit code: 3 if there is none but
    failed ones, 4 if there is none. Images that cannot be read are reported.

    Raises TandemError or OSError.
    """
    header = header_of(options)
    selection = select_images(header, subfolders=not options.no_subfolders)
    for note in [*selection.notes, *nothing_to_do(selection, header)]:
        reporter.send(Message(note=note))
    if not selection.images:
        reporter.send(Message(total=len(selection.faults), kept=0))
        report_faults(selection, reporter)
        reporter.send(Message(finished=0))
        return None, FINISHED if selection.present else NO_DATA
    proposals = ProposalSet.create(Path(options.out), header)

    def report(proposal: Proposal) -> None:
        mask = None if proposal.mask is None else str(proposals.mask_file(proposal))
        reporter.send(Message(image=proposal.image, text=proposal.text, mask=mask, error=proposal.error))

    with proposals.lock():  # before the model is loaded: a second program is told at once
        annotator = annotator_for(proposals, selection.images, options, reporter)
        reporter.send(Message(proposals=str(proposals.path)))
        left = images_left(proposals, selection.images)
        reporter.send(Message(total=len(left) + len(selection.faults), kept=len(selection.images) - len(left)))
        report_faults(selection, reporter)
        if annotator is not None:
            wording = Wording(getattr(options, "prefix", ""), getattr(options, "suffix", ""))
            propose(proposals, left, annotator, wording, options.batch_size, report)
    made = proposals.read().values()
    reporter.send(Message(finished=sum(each.is_wanted for each in made)))
    return proposals, FAILED if all(each.error is not None for each in made) else FINISHED


def report_faults(selection: Selection, reporter: Reporter) -> None:
    """Report the images that cannot be asked about."""
    for image, why in selection.faults.items():
        reporter.send(Message(image=image, error=why))


def nothing_to_do(selection: Selection, header: Header) -> list[str]:
    """Why no image is asked about, if none is."""
    if selection.images:
        return []
    if not selection.present:
        return [f"There are no images in {header.folder} that can be read."]
    what = "mask" if header.task == "mask" else "caption"
    return [f"Nothing to do: {selection.present} images have a {what} already; --replace and --append change them."]


def annotator_for(
    proposals: ProposalSet, images: Sequence[FoundImage], options: argparse.Namespace, reporter: Reporter
) -> Annotator | None:
    """The model for the images that are left; None if there are none. A set without proposals goes if it fails."""
    try:
        return load_annotator(options, proposals.header(), reporter) if images_left(proposals, images) else None
    except BaseException:
        if not proposals.read():
            remove_tree(proposals.path)
        raise


def load_annotator(options: argparse.Namespace, header: Header, reporter: Reporter) -> Annotator:
    """The model, downloaded if it has to be. Raises TandemError."""
    device = find_device(options.device)
    reporter.send(Message(loading=header.model))
    progress = partial(_show_download, reporter)
    if header.task == "tag":
        from modules.annotators.tags import TagChoice, Tagger

        exclude = tuple(tag for tag in options.exclude.split(",") if tag.strip())
        choice = TagChoice(
            options.threshold,
            options.character_threshold,
            exclude,
            keep_underscores=options.keep_underscores,
            with_rating=options.with_rating,
        )
        folder = model_folder(header.model, "tagger", progress=progress)
        return Tagger(folder, choice, on_gpu=device.type == "cuda", name=header.model)
    dtype = find_dtype(options.precision, device)
    if header.task == "mask":
        from modules.annotators import mask

        folder = model_folder(header.model, "transformers", mask.MODEL_TYPES, progress)
        shape = mask.MaskShape(options.threshold, options.smooth, options.expand, options.invert)
        return mask.Masker(folder, device, dtype, prompts=options.prompt, shape=shape, name=header.model)
    from modules.annotators import caption

    folder = model_folder(header.model, "transformers", caption.MODEL_TYPES, progress)
    return caption.Captioner(
        folder, device, dtype, prompt=options.prompt, max_tokens=options.max_tokens, name=header.model
    )


def _show_download(reporter: Reporter, done: int, total: int) -> None:
    if total:
        reporter.send(Message(downloading=[done, total]))
