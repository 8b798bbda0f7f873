"""`jq-ctl lock …`: unique locks."""

from __future__ import annotations

import pytest

from tests.cli.kit import Ctl

CHARGE = ("charge", "-q", "billing", "-a", "invoice=7", "-a", "tenant=acme")


@pytest.fixture
def held(ctl: Ctl) -> None:
    """A waiting job that holds the lock of invoice 7 of acme."""
    submit = ("job", "submit", *CHARGE, "-a", "note=x", "--unique", "tenant,invoice")
    ctl(*submit, "--id", "inv-7")


@pytest.mark.usefixtures("held")
def test_the_holder_of_a_lock_is_shown_by_arguments_or_by_job(ctl: Ctl) -> None:
    by_arguments = ctl.json("lock", "show", *CHARGE)
    assert (by_arguments["job"], by_arguments["state"]) == ("inv-7", "waiting")
    assert ctl.json("lock", "show", "--job", "inv-7", "-q", "billing") == by_arguments
    assert "inv-7" in ctl("lock", "show", *CHARGE).stdout
    free = ctl("lock", "show", "charge", "-q", "billing", "-a", "invoice=8", code=1)
    assert "is free" in free.stdout


@pytest.mark.usefixtures("held")
def test_a_lock_is_released_after_a_question(ctl: Ctl) -> None:
    assert "nothing was done" in ctl("lock", "release", *CHARGE, input="n\n", code=1).stderr
    released = ctl.json("lock", "release", *CHARGE, "--yes")
    assert (released["job"], released["released"]) == ("inv-7", True)
    assert "is free" in ctl("lock", "release", *CHARGE, "--yes", code=1).stderr
    (event,) = ctl.json("events", "--all", "--kind", "released_lock")
    assert event["reason"] == "inv-7"
    assert "@" in event["actor"]


@pytest.mark.usefixtures("held")
def test_a_lock_that_cannot_be_named_is_explained(ctl: Ctl) -> None:
    assert "no task" in ctl("lock", "show", "-q", "billing", code=2).stderr
    both = ctl("lock", "show", *CHARGE, "--job", "inv-7", code=2)
    assert "not both" in both.stderr
    assert "no queue 'bling'" in ctl("lock", "show", "charge", "-q", "bling", code=1).stderr
    ctl("job", "submit", "plain", "-q", "billing", "--id", "p")
    assert "no unique lock" in ctl("lock", "show", "--job", "p", "-q", "billing", code=1).stderr
