"""Parsing torchrun's log."""

from __future__ import annotations

from modules.run.supervise.launcher_log import LauncherReport, parse_launcher_log, shows_failure

TORCHRUN = """\
[rank5]: ValueError: five
tqdm 3%|## | 1/2 KeyError: not a line of its own
E1121 02:34:02.451000 4504 api.py:1002] failed (exitcode: 7) local_rank: 1 (pid: 4507) of binary: python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[1]:
  time      : 2026-11-21_02:34:02
  host      : node-a
  rank      : 4 (local_rank: 0)
  exitcode  : -15 (pid: 4506)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 4506
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_02:34:02
  host      : node-a
  rank      : 5 (local_rank: 1)
  exitcode  : 7 (pid: 4507)
  error_file: <N/A>
"""


def test_torchrun_report_is_parsed() -> None:
    report = parse_launcher_log(TORCHRUN, first_rank=4)
    assert [(each.rank, each.exit_code, each.is_first) for each in report.exits] == [
        (5, 7, True),
        (4, -15, False),
    ]
    assert report.exits[0].time > 0
    assert report.error_line(5) == "ValueError: five"
    assert report.error_line(4) == ""
    without_report = parse_launcher_log(TORCHRUN[: TORCHRUN.index("Failures")], first_rank=4)
    assert [(each.rank, each.exit_code) for each in without_report.exits] == [(5, 7)]
    assert parse_launcher_log("") == LauncherReport()


def test_log_lines_that_show_a_failure() -> None:
    assert shows_failure(TORCHRUN)
    assert shows_failure("W1121 api.py:1028] Sending process 4506 closing signal SIGTERM")
    stopped = "Received Signals.SIGTERM death signal, shutting down workers\n"
    stopped += "Sending process 4506 closing signal SIGTERM"
    assert not shows_failure(stopped)
    ended = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4504 got signal: 2\n"
    assert parse_launcher_log(f"{stopped}\n{ended}").signal == 2
    assert parse_launcher_log(TORCHRUN).signal == 0
