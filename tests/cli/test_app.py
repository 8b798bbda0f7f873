"""`jq-worker --app …`: the queues that it loads, and its errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from jobq.cli.app import chosen, load, load_function, parse_weights
from jobq.cli.worker import main
from jobq.errors import ConfigError

APPS = Path(__file__).parent / "apps"


@pytest.fixture(autouse=True)
def in_the_apps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(APPS)
    monkeypatch.syspath_prepend(str(APPS))


@pytest.mark.parametrize(
    ("specs", "names"),
    [
        (["shopapp:shop"], ["shop"]),
        (["shopapp:shop,emails"], ["shop", "emails"]),
        (["shopapp"], ["shop", "emails"]),
        (["shopapp:emails", "shopapp"], ["emails", "shop"]),
    ],
)
def test_specs_load_each_queue_once(specs: list[str], names: list[str]) -> None:
    assert [queue.name for queue in load(specs)] == names


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nowhere:shop", "no module 'nowhere'"),
        ("shopapp.deeper:shop", "no module 'shopapp.deeper'"),
        ("shopapp:shoop", "has no 'shoop'; its queues are shop, emails (did you mean 'shop'?)"),
        ("shopapp:number", "'number' in"),
        ("shopapp:number", "is a int, not a jobq Queue"),
        ("brokenapp:shop", "importing brokenapp failed: RuntimeError: the settings are missing"),
        ("needyapp:shop", "imports no_such_package_anywhere, which is not installed"),
        ("needyapp:shop", "needyapp.py, line 3"),
        (":shop", "must look like module:queue"),
        ("shopapp:", "must look like module:queue"),
        ("json", "found no Queue in"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_a_one_line_error(spec: str, said: str) -> None:
    result = CliRunner().invoke(main, ["--app", spec])
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_queues_of_the_app_can_be_selected_by_name() -> None:
    queues = load(["shopapp"])
    assert [queue.name for queue in chosen(queues, ["emails"])] == ["emails"]
    with pytest.raises(ConfigError, match="the app has no queue 'email'"):
        chosen(queues, ["email"])


def test_all_modules_of_a_package_are_imported_but_not_its_tests() -> None:
    queues = load(["storeapp"])
    assert {queue.name: sorted(queue.tasks) for queue in queues} == {
        "orders": ["charge", "ship"],
        "mails": ["mail"],
    }


def test_only_the_listed_modules_are_imported_if_some_are_listed() -> None:
    command = (
        "from jobq.cli.app import load; queues = load(['storeapp'], ['storeapp.shipping']); "
        "print({queue.name: sorted(queue.tasks) for queue in queues})"
    )
    found = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "{'orders': ['ship']}"


def test_weights_are_part_of_the_names_of_queues() -> None:
    assert parse_weights(["billing=3,emails", "late=2"]) == (
        ["billing", "emails", "late"],
        {"billing": 3, "late": 2},
    )
    with pytest.raises(ConfigError, match="the weight 'high' is not a number"):
        parse_weights(["billing=high"])


def test_lifespan_and_middleware_are_functions_of_a_module() -> None:
    assert load_function("storeapp.hooks:lifespan", "--lifespan").__name__ == "lifespan"
    with pytest.raises(ConfigError, match="--lifespan 'storeapp' must look like module:function"):
        load_function("storeapp", "--lifespan")
    with pytest.raises(ConfigError, match="has no 'nothing'"):
        load_function("storeapp.hooks:nothing", "--lifespan")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--app", "shopapp", "--queues", "shop=0", "--url", "memory://x"], "the weight of shop=0"),
        (["--app", "shopapp", "--modules", "nowhere"], "--modules nowhere: no module 'nowhere'"),
        (["--app", "shopapp", "--middleware", "nowhere:x"], "no module 'nowhere'"),
        ([], "give one as MODULE:QUEUE"),
        # The store cannot be opened: a worker that starts by mistake fails instead of running on.
        (["--app", "idleapp", "--url", "nonsense"], "no tasks in first, second"),
        (["idleapp:first", "--url", "nonsense"], "no tasks in first"),
        (["--app", "shopapp", "--concurrency", "0"], "0 is not in the range"),
        (["--app", "shopapp", "--lease", "soon"], "'soon' is not a duration"),
        (["--app", "shopapp", "--config", "nowhere.yaml"], "cannot read nowhere.yaml"),
        (["--app", "shopapp", "--url", "nonsense"], "no store for 'nonsense'"),
    ],
)
def test_a_wrong_option_is_named_in_the_error(args: list[str], said: str) -> None:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 2
    assert said in result.output


def test_a_config_file_with_an_unknown_option_is_refused(tmp_path: Path) -> None:
    (tmp_path / "worker.yaml").write_text("concurency: 5\n")
    result = CliRunner().invoke(main, ["--app", "shopapp", "--config", f"{tmp_path}/worker.yaml"])
    assert result.exit_code == 2
    assert "has an unknown option 'concurency'" in " ".join(result.output.split())


def test_the_file_of_a_server_sets_what_a_worker_has_in_common_with_it(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text(
        "grpc: {port: 50051}\nmetrics: {port: 9090}\nlogging: {level: debug, format: json}\n"
        "scheduler: {worker_heartbeat_timeout_s: 40}\nshutdown_grace_period: 90\n"
    )
    given = main.make_context("jq-worker", ["--config", str(path), "shopapp:shop"]).params
    assert (given["log_level"], given["log_format"]) == ("debug", "json")
    assert (given["lease"], given["drain"]) == (40.0, 90.0)
    assert given["metrics_port"] is None  # 9090 is the server's
    given = main.make_context("w", ["--config", str(path), "--lease", "5s", "a:b"]).params
    assert given["lease"] == 5.0


def test_a_wrong_key_in_the_file_of_a_server_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text("grpc: {prot: 50051}\n")
    result = CliRunner().invoke(main, ["--app", "shopapp", "--config", str(path)])
    assert result.exit_code == 2
    assert "did you mean grpc.port?" in " ".join(result.output.split())


def test_the_app_can_be_given_with_or_without_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    def load(specs: tuple[str, ...], modules: list[str]) -> list[object]:
        given.append(list(specs))
        raise ConfigError("stop here")

    monkeypatch.setattr("jobq.cli.worker.load", load)
    monkeypatch.setenv("JQ_APP", "from.the:environment")
    for args in (
        ["shopapp:shop"],
        ["--app", "shopapp:shop"],
        ["shopapp:shop", "--app", "shopapp:emails"],
        [],
    ):
        CliRunner().invoke(main, args)
    assert given == [
        ["shopapp:shop"],
        ["shopapp:shop"],
        ["shopapp:shop", "shopapp:emails"],
        ["from.the:environment"],
    ]
