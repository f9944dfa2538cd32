"""TensorBoard's tab HPARAMS: what its own plugin finds in the files of several runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from modules.config.hyperparameters import HyperParameter
from modules.monitoring import RunReport, StepRecord
from modules.run import EventLog, Failure

SUCCESS, UNKNOWN = 1, 0  # of the plugin's Status


def run(folder: Path, settings: Mapping[str, HyperParameter], losses: list[float], reason: str, first: int = 1) -> None:
    """A run whose training losses are `losses` and whose validation losses are half of that."""
    folder.mkdir(exist_ok=True)
    report = RunReport(EventLog(folder / "events.jsonl"), folder / "tensorboard", hyperparameters=settings)
    report.started({}, 0, 3, 12)
    for step, loss in enumerate(losses, start=first):
        report.step(StepRecord(step, 0, 4 * step, loss, 1e-4, 1.0, 0.5), shown=True)
        report.validation("validation", loss / 2, 0.1, step, {"accuracy": 1 - loss})
    if reason == "failed":
        report.failed(Failure(0, "alpha", "program", "It broke."))
    else:
        report.finished(reason, 0)
    report.close()


def shown_by_tensorboard(folder: Path) -> tuple[list[str], dict[str, Any], dict[str, dict[str, float]]]:
    """The columns of the tab; of each run its session, and its metrics by tag."""
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2
    from tensorboard.plugins.hparams.backend_context import Context
    from tensorboard.plugins.hparams.get_experiment import Handler as Experiment
    from tensorboard.plugins.hparams.list_session_groups import Handler as SessionGroups

    events = EventMultiplexer().AddRunsFromDirectory(str(folder)).Reload()
    shown = Context(TBContext(logdir=str(folder), data_provider=MultiplexerDataProvider(events, str(folder))))
    experiment = Experiment(RequestContext(), shown, "", api_pb2.GetExperimentRequest()).run()
    wanted = api_pb2.ListSessionGroupsRequest(
        start_index=0,
        slice_size=9,
        allowed_statuses=[0, 1, 2, 3],
        col_params=[api_pb2.ColParams(metric=info.name) for info in experiment.metric_infos],
        include_metrics=True,
    )
    groups = SessionGroups(RequestContext(), shown, "", wanted).run().session_groups
    sessions = {group.sessions[0].name.split("/")[0]: group.sessions[0] for group in groups}
    metrics = {
        name: {each.name.tag: each.value for each in session.metric_values} for name, session in sessions.items()
    }
    return [info.name for info in experiment.hparam_infos], sessions, metrics


@pytest.mark.filterwarnings("default")  # of TensorBoard
def test_runs_are_compared_by_their_final_metrics_and_all_their_settings(tmp_path: Path) -> None:
    run(tmp_path / "first", {"learning_rate": 1e-4, "ema": True}, [0.5, float("nan"), 0.25], "finished")
    run(tmp_path / "second", {"learning_rate": 1e-3, "scheduler": "cosine"}, [0.5, 0.75], "stopped")
    run(tmp_path / "third", {"learning_rate": 1e-2}, [0.5], "failed")
    run(tmp_path / "third", {"learning_rate": 1e-2}, [0.125], "finished", first=2)  # resumed
    columns, sessions, metrics = shown_by_tensorboard(tmp_path)
    assert set(columns) == {"learning_rate", "ema", "scheduler"}, "of every run, also what only one has"
    assert {name: each.status for name, each in sessions.items()} == {
        "first": SUCCESS,
        "second": UNKNOWN,
        "third": SUCCESS,
    }
    first = metrics["first"]
    assert first["final/loss"] == 0.375, "the mean of those that are finite"
    assert first["final/validation_loss"] == first["final/best_validation_loss"] == 0.125
    assert first["final/validation_accuracy"] == 0.75
    assert first["final/samples_per_s"] == 8.0
    assert (metrics["second"]["final/validation_loss"], metrics["second"]["final/best_validation_loss"]) == (
        0.375,
        0.25,
    )
    assert metrics["third"]["final/loss"] == 0.125, "of the last start"


def test_a_run_without_a_step_has_no_final_metrics(tmp_path: Path) -> None:
    run(tmp_path / "cached", {"learning_rate": 1e-4}, [], "cached")
    _, sessions, metrics = shown_by_tensorboard(tmp_path)
    assert sessions["cached"].status == SUCCESS
    assert metrics == {"cached": {}}
