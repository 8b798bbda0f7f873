"""`jq-worker --app …`: the queues that it loads, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from jobq.cli.app import chosen, load
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


@pytest.mark.parametrize(
    ("args", "said"),
    [
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


def test_the_app_can_be_given_with_or_without_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    def load(specs: tuple[str, ...]) -> list[object]:
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
