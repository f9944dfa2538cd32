"""The list of machines: a private file, and texts that can become no option and no shell command."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from modules.config import ConfigError, TrainConfig
from modules.run.hosts import host_list
from modules.run.hosts.host import Host
from modules.run.hosts.host_list import add_host, find_hosts, hosts_file, read_hosts, remove_host, resolve_with_hosts
from modules.run.hosts.remote_machines import join_arguments
from modules.run.hosts.ssh_command import ssh_argv
from modules.run.join.join_token import generate_token
from scripts import hosts as program
from tests.hosts import ROOT
from tests.ports import free_port


@pytest.fixture(autouse=True)
def config_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "config"))


def test_the_list_keeps_its_order_and_is_private(capsys: pytest.CaptureFixture[str]) -> None:
    assert read_hosts() == []
    assert program.main(["add", "beta", "me@10.0.0.2", "~/tandem", "--port", "2222", "--allow_differences"]) == 0
    assert read_hosts()[0].allow_differences
    half_written = hosts_file().with_name(".partial-99999999-hosts.json")  # by a program that was killed
    half_written.touch()
    assert program.main(["add", "gamma", "gpu-box", "/opt/tandem", "--set", "cache_dir=/scratch"]) == 0
    assert program.main(["add", "beta", "me@fe80::1%eth0", "~", "--python", "python3.12"]) == 0
    assert [host.name for host in read_hosts()] == ["beta", "gamma"], "replaced in its place"
    assert not half_written.exists()
    assert hosts_file().stat().st_mode & 0o777 == 0o600
    assert find_hosts(["gamma", "gamma"]) == [
        Host.make("gamma", "gpu-box", "/opt/tandem", settings=["cache_dir=/scratch"])
    ]
    add_host(Host.make("gamma", "gpu-box", "/opt/tandem", price=1.5, slurm=["--partition=gpu", "--gpus=4"]))
    capsys.readouterr()
    assert program.main(["list"]) == 0
    said = capsys.readouterr().out
    assert "beta   me@fe80::1%eth0  ~  Python python3.12" in said
    assert "/opt/tandem  Slurm cluster (--partition=gpu --gpus=4)  1.5 an hour" in said
    assert program.main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[1]["target"] == "gpu-box"
    assert program.main(["remove", "delta"]) == 2
    assert "no machine is named 'delta'; the list has: beta, gamma" in capsys.readouterr().err
    assert program.main(["remove", "beta"]) == 0
    remove_host("gamma")
    assert read_hosts() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("name", text) for text in ("", "-x", "a/b", "a b", "a\n", "x" * 41, "..")),
        *(
            ("target", text)
            for text in ("", "-oProxyCommand=x", "me@-x", "a b", "a;b", "$(x)", "a@b@c", "a\nb", "a:22")
        ),
        *(("target", text) for text in ("ssh://a", "%h", "me@", "'a'", "[::1]")),
        *(("folder", text) for text in ("", "tandem", "-x", "~other/x", "/a\nb", "/a\x1b", "/" + "x" * 1001)),
        *(("python", text) for text in ("-c", "a\nb", "\x00")),
        *(("port", number) for number in (0, 65_536, -1)),
        *(("settings", [text]) for text in ("cache_dir", "cache_dir=\x1b")),
    ],
)
def test_what_a_host_may_not_be(field: str, value: object) -> None:
    fields = {"name": "beta", "target": "me@10.0.0.2", "folder": "~/tandem", field: value}
    with pytest.raises(ConfigError, match=rf"^host: {field} is .*; use "):
        Host.make(**fields)  # type: ignore[arg-type]
    hosts_file().parent.mkdir(mode=0o700)
    hosts_file().write_text(json.dumps({"hosts": [fields]}))
    hosts_file().chmod(0o600)
    with pytest.raises(ConfigError, match=rf"hosts\.json is wrong in 'hosts\.0\.{field}.*move it away"):
        read_hosts()


@pytest.mark.slow
def test_what_is_said_of_a_file_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "old.json").write_text('{"version": 1, "masked_training": true}')
    config = resolve_with_hosts(str(tmp_path / "old.json"), ["resolution=256"], 1)
    assert (config.num_nodes, config.enable_multi_gpu, config.resolution) == (2, True, 256)
    assert len([each for each in caplog.messages if "does not give normalize_masked_area_loss" in each]) == 1


def test_programs_that_change_the_list_at_once_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    add_host(Host.make("beta", "me@10.0.0.2", "~/tandem"))
    lock = hosts_file().with_suffix(".lock")
    script = (
        "import sys; from pathlib import Path; from modules.run.folder.run_lock import file_lock\n"
        "with file_lock(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", script, str(lock)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        monkeypatch.setattr(host_list, "_OTHERS_TAKE_S", 0.0)
        for change in (lambda: add_host(Host.make("gamma", "gamma", "/")), lambda: remove_host("beta")):
            with pytest.raises(ConfigError, match="another program is changing the list"):
                change()
    add_host(Host.make("gamma", "gamma", "/"))
    assert [host.name for host in read_hosts()] == ["beta", "gamma"]


def test_files_that_are_not_believed() -> None:
    add_host(Host.make("beta", "me@10.0.0.2", "~/tandem"))
    hosts_file().chmod(0o622)
    with pytest.raises(ConfigError, match="other users can write it"):
        read_hosts()
    hosts_file().chmod(0o600)
    hosts_file().write_text('{"hosts": {}}')
    with pytest.raises(ConfigError, match="is wrong in 'hosts'"):
        read_hosts()
    with pytest.raises(ConfigError, match="only machine 0 can set it"):
        Host.make("beta", "beta", "~", settings=["learning_rate=1"])


def test_every_text_reaches_the_other_shell_as_one_word(tmp_path: Path) -> None:
    """The remote command as sshd would run it: by the user's shell."""
    odd = tmp_path / "its $(touch x) `y` 'folder'"
    (odd / "scripts").mkdir(parents=True)
    for name in ("train.py", "hosts.py"):
        (odd / "scripts" / name).touch()
    images = tmp_path / "images; touch x"
    images.mkdir()
    config = TrainConfig.model_validate(
        {"concepts": [{"path": str(images)}, {"path": "-x"}], "base_model": "a/hub-name"}
    )
    host = Host.make("beta", "beta", str(odd), python="/bin/echo", settings=["cache_dir=/a b"])
    arguments = join_arguments(config, host, "10.0.0.1:12356")
    assert arguments == [
        *("scripts/train.py", "--join", "10.0.0.1:12356", "--token_file", "-", "--stop_from_stdin"),
        *(f"--allow={images}", "--set=cache_dir=/a b"),
    ]
    command = ssh_argv(host, arguments)[-1]
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == " ".join(arguments) + "\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([odd.name, images.name])
    assert shlex.split(command)[:3] == ["exec", "sh", "-c"]
    own = TrainConfig.model_validate({"family": "/somewhere/family.py", "concepts": []})
    assert "--trust_code" in join_arguments(own, host, "10.0.0.1:12356")


def test_a_line_on_stdin_stops_what_ssh_has_started() -> None:
    """The token and the request to stop may arrive together, before the program listens."""
    argv = [sys.executable, "scripts/train.py", "--join", f"127.0.0.1:{free_port()}"]
    done = subprocess.run(
        [*argv, "--token_file", "-", "--stop_from_stdin"],
        input=f"{generate_token()}\nstop\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 130, done.stderr
    assert "Stopped." in done.stdout + done.stderr
