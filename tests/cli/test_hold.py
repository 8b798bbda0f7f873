"""`jq-ctl queue hold` and `queue release`."""

from __future__ import annotations

from tests.cli.kit import Ctl


def test_a_queue_is_held_shown_and_released(ctl: Ctl) -> None:
    ctl("queue", "create", "shop")
    held = ctl.json("queue", "hold", "shop", "10m")
    assert (held["queue"], held["key"]) == ("shop", None)
    assert ctl.json("queue", "stats", "shop")["held_until"] == held["held_until"]
    assert ctl.json("limit", "show", "shop")[0]["held_until"] == held["held_until"]
    assert "Held until" in ctl("queue", "stats", "shop").stdout
    assert "Held until" in ctl("limit", "show", "shop").stdout
    assert "held" in ctl("queue", "list").stdout
    assert ctl.json("queue", "release", "shop") == {"queue": "shop", "key": None, "released": True}
    assert ctl.json("queue", "stats", "shop")["held_until"] is None
    assert "was not held" in ctl("queue", "release", "shop").stdout


def test_a_key_is_held_shown_and_released(ctl: Ctl) -> None:
    ctl("queue", "create", "shop", "--mode", "keyed")
    held = ctl.json("queue", "hold", "shop", "1h", "--key", "acme")
    assert ctl.json("limit", "show", "shop")[0]["held_keys"] == {"acme": held["held_until"]}
    assert "acme" in ctl("limit", "show", "shop").stdout
    assert "key acme of shop released" in ctl("queue", "release", "shop", "--key", "acme").stdout
    assert ctl.json("limit", "show", "shop")[0]["held_keys"] == {}


def test_wrong_arguments_are_named_in_the_error(ctl: Ctl) -> None:
    ctl("queue", "create", "shop", "--mode", "plain")
    assert (
        "its jobs have no keys"
        in ctl("queue", "hold", "shop", "1h", "--key", "acme", code=1).stderr
    )
    assert "no queue 'ghost'" in ctl("queue", "hold", "ghost", "1h", code=1).stderr
    assert "no queue 'ghost'" in ctl("queue", "release", "ghost", code=1).stderr
    assert "soon" in ctl("queue", "hold", "shop", "soon", code=2).stderr
