"""Texts that try to break out of a page, and a store that has them in every place for a text."""

from __future__ import annotations

from typing import Any

from jobq import Every, Queue, current_job
from tests.web.browser.live import Live

MARK = "window.__pwned=1"

NAMES = [
    f"\"'><img src=x onerror={MARK}>",
    f"</script><script>{MARK}</script>",
    f"</title></textarea></style><svg onload={MARK}>",
    f"javascript:{MARK}//",
    f'" autofocus onfocus="{MARK}" x="',
    f"'-({MARK})-'",
    "&lt;b&gt; &amp;quot; &#34; %22 %3Cb%3E + %2e%2e%2f",
    "../../..//a?b=c&d#e;f",
    "..",
    "\u202eright to left\u202c \u2066\u200f \u2028 \u200b\ufeff",
    "İstanbul ﷽ 👩‍👩‍👧‍👦 e\u0301\u0301\u0301\u0301",
    "x" * 128,
]
"""Names that are allowed. Control characters and braces are not, in any name."""

TEXTS = [
    *NAMES,
    "{{ 7 * 7 }} {% raw %} ${7 * 7} #{7 * 7}",
    "two\nlines\r\n\tand \x1b[31mred\x1b[0m \x00 \x08 bell \x07",
    f"]]> --> <!-- <![CDATA[ <script>{MARK}</script>",
    "\ud7ff\uffff\U0010ffff",
    "y" * 3_000,
]
"""Texts where everything is allowed: arguments, results, errors, log lines, values of meta."""


class Hostile:
    """A queue, a job, a worker and a schedule that all have the same hostile name."""

    def __init__(self, live: Live, number: int, name: str) -> None:
        self.name = name
        self.text = TEXTS[(number * 5 + 3) % len(TEXTS)]
        self.tenant = name.replace(":", ";")
        self.queue = live.queue(name, tenant=self.tenant, mode="keyed")
        self._add_tasks(self.queue)
        live.work(self.queue, concurrency=2, name=name)
        live.run(self._fill())

    def _add_tasks(self, queue: Queue) -> None:
        text = self.text

        @queue.task(name=self.name, retry=0)
        async def ends(value: Any, fail: bool) -> Any:
            job = current_job()
            await job.log(text)
            await job.progress({"percent": 50, text[:100]: text})
            if fail:
                raise type(self.name, (Exception,), {})(text)
            return {text[:100]: value}

    async def _fill(self) -> None:
        name, text, queue = self.name, self.text, self.queue
        options: dict[str, Any] = {"key": name, "meta": {name[:64]: text[:500]}}
        task = queue.task_by_name(name, **options)
        jobs = [
            await task.options(id=name).enqueue(text, True),
            await task.options(id=f"{name} ok").enqueue({text[:100]: text}, False),
        ]
        for job in jobs:
            await job.wait(timeout=20)
        acting = queue.as_actor(name)
        await task.options(id=f"{name} later", delay=3600).enqueue(text, False)
        await acting.schedule(name[:100], Every(3600), task, text, False)
        await acting.pause_schedule(name[:100])
        async with queue.flow(id=f"{name} flow"[-200:]) as flow:
            first = flow.add(task, text, False)
            flow.add(task.options(after=[first], delay=3600), text, False)
        await acting.pause()
        await acting.resume()

    @property
    def where(self) -> dict[str, str]:
        """The queue in the query of a page."""
        return {"tenant": self.tenant, "queue": self.name}

    def pages(self) -> list[tuple[str, dict[str, str]]]:
        """Every page that shows the name."""
        job = self.where | {"id": self.name}
        return [
            ("/queue", self.where),
            ("/jobs", self.where),
            ("/jobs", self.where | {"state": "failed", "name": self.name, "key": self.name}),
            ("/job", job),
            ("/job", self.where | {"id": f"{self.name} ok"}),
            ("/dead", self.where),
            ("/schedules", self.where),
            ("/flows", self.where),
            ("/flow", self.where | {"id": f"{self.name} flow"[-200:]}),
            ("/workers", self.where),
            ("/worker", {"name": self.name}),
            ("/search", {"q": self.name}),
        ]
