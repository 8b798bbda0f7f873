"""Fixtures of the dashboard's tests: a store with jobs, and a browser."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from jobq.engine.service import wall_clock
from jobq.stores.base import Store
from jobq.web.site import Dashboard
from jobq_conformance.places import PLACES, Fresh, Opening, Unavailable
from tests.web.kit import Browser, fill


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that use a store on memory:// and sqlite://, or on those that --store names."""
    if "web_store_name" in metafunc.fixturenames:
        named = metafunc.config.getoption("--store") or [
            name for name in os.environ.get("JQ_TEST_STORES", "").split(",") if name
        ]
        metafunc.parametrize("web_store_name", named or ["memory", "sqlite"], scope="session")


@pytest.fixture(scope="session")
def web_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Fresh]]:
    """Starts what a store needs before its first test."""
    started: dict[str, Fresh] = {}
    with ExitStack() as stack:

        def start(name: str) -> Fresh:
            if name not in started:
                try:
                    place = contextmanager(PLACES[name])
                    started[name] = stack.enter_context(place(tmp_path_factory.mktemp(name)))
                except Unavailable as missing:
                    pytest.skip(f"there is no {name} on this machine: {missing}")
            return started[name]

        yield start


@pytest.fixture
def web_opening(web_places: Callable[[str], Fresh], web_store_name: str) -> Opening:
    """Opens handles on one empty store. Not async: starting a server may run an event loop."""
    return web_places(web_store_name)()


@pytest.fixture
async def store(web_opening: Opening) -> AsyncIterator[Store]:
    """An empty store."""
    async with web_opening(wall_clock) as opened:
        yield opened


@pytest.fixture
async def memory(web_places: Callable[[str], Fresh]) -> AsyncIterator[Store]:
    """A store in memory with the jobs of two tenants, for what no store decides."""
    async with web_places("memory")()(wall_clock) as opened:
        await fill(opened, "acme")
        await fill(opened, "other")
        yield opened


Make = Callable[..., Browser]


@pytest.fixture
async def browse() -> AsyncIterator[Make]:
    """Makes a browser on a dashboard: `browse(store, read_only=True)`."""
    made: list[tuple[Dashboard, Browser]] = []

    def make(store: str | Store, /, **options: object) -> Browser:
        of_browser = {
            name: options.pop(name)
            for name in ("base", "client", "headers", "root_path")
            if name in options
        }
        settings: dict[str, object] = {
            "sign_in": None,
            "read_only": False,
            "hide_payloads": False,
            "secret": None,
        }
        dashboard = Dashboard(store, **{**settings, **options})  # type: ignore[arg-type]
        browser = Browser(dashboard, **of_browser)  # type: ignore[arg-type]
        made.append((dashboard, browser))
        return browser

    yield make
    for dashboard, browser in made:
        await browser.http.aclose()
        await dashboard.aclose()
