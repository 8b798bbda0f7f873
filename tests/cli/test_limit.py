"""`jq-ctl limit …`."""

from __future__ import annotations

import pytest

from tests.cli.kit import Ctl


@pytest.fixture
def shop(ctl: Ctl) -> None:
    ctl("queue", "create", "shop", "--mode", "keyed")


@pytest.mark.usefixtures("shop")
def test_limits_are_set_shown_and_removed(ctl: Ctl) -> None:
    limits = ctl.json(
        "limit", "set", "shop", "--limit", "20", "--rate", "100/1m", "--key-rate", "10+0.5/s"
    )
    assert (limits["limit"], limits["rate"], limits["key_limit"]) == (
        20,
        {"limit": 100, "per_ms": 60_000},
        None,
    )
    assert limits["key_rate"] == {"capacity": 10, "refill": 0.5}
    assert limits["changed"] is True
    shown = ctl("limit", "show", "shop").stdout
    assert "at most 20" in shown
    assert "100 per 1m" in shown
    assert "a bucket of 10, refilled at 0.5/s" in shown
    assert "changed at run time" in shown
    limits = ctl.json("limit", "remove", "shop", "--rate")
    assert (limits["limit"], limits["rate"]) == (20, None)
    limits = ctl.json("limit", "remove", "shop")
    assert (limits["limit"], limits["key_rate"], limits["changed"]) == (None, None, False)


@pytest.mark.usefixtures("shop")
def test_max_waiting_is_set_shown_and_removed(ctl: Ctl) -> None:
    assert ctl.json("limit", "set", "shop", "--max-waiting", "2")["max_waiting"] == 2
    assert "at most 2" in ctl("limit", "show", "shop").stdout
    assert "at most 2 waiting" in ctl("queue", "stats", "shop").stdout
    assert ctl.json("queue", "stats", "shop")["limits"] == {"max_waiting": 2}
    lines = "\n".join('{"name": "add", "key": "k"}' for _ in range(3))
    refused = ctl("job", "submit", "-q", "shop", "--lines", "-", input=lines, code=1).stderr
    assert "queue 'shop' is full: max_waiting=2" in refused
    assert "2 jobs" in refused
    assert "is full" in ctl("job", "submit", "add", "-q", "shop", "--key", "k", code=1).stderr
    assert ctl.json("limit", "remove", "shop", "--max-waiting")["max_waiting"] is None


@pytest.mark.usefixtures("shop")
def test_a_key_can_have_its_own_limits(ctl: Ctl) -> None:
    limits = ctl.json("limit", "set", "shop", "--key", "acme", "--key-limit", "5")
    assert limits["keys"] == {"acme": {"key_limit": 5, "key_rate": None}}
    assert "acme" in ctl("limit", "show").stdout
    assert ctl.json("limit", "remove", "shop", "--key", "acme")["keys"] == {}


@pytest.mark.usefixtures("shop")
def test_wrong_arguments_are_named_in_the_error(ctl: Ctl) -> None:
    assert "nothing to change" in ctl("limit", "set", "shop", code=2).stderr
    assert "use 100/1m" in ctl("limit", "set", "shop", "--rate", "fast", code=2).stderr
    assert "0" in ctl("limit", "set", "shop", "--rate", "0/1m", code=2).stderr
    assert (
        "limit is a limit of the whole queue"
        in ctl("limit", "set", "shop", "--key", "k", "--limit", "5", code=1).stderr
    )
    assert "no queue 'ghost'" in ctl("limit", "set", "ghost", "--limit", "5", code=1).stderr


@pytest.mark.usefixtures("shop")
def test_all_queues_are_shown_unless_some_are_named(ctl: Ctl) -> None:
    ctl("queue", "create", "mail")
    assert [limits["queue"] for limits in ctl.json("limit", "show")] == ["mail", "shop"]
    assert [limits["queue"] for limits in ctl.json("limit", "show", "shop")] == ["shop"]
