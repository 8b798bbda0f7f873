"""Write the drawings in docs/diagrams as SVG, so that they need no program and no other site.

python -m scripts.diagrams           write the drawings
python -m scripts.diagrams --check   exit 1 if a drawing is not up to date

A drawing follows the reader's light or dark setting: as an image by its own style, and as part of a
page of the site by the page's.
"""

from __future__ import annotations

import sys
from html import escape
from itertools import groupby
from pathlib import Path

from jobq.core.records.states import ENDED, TRANSITIONS, State, Transition

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "diagrams"
LINE = 17
"""Pixels between two lines of text."""
STYLE = """<style>
.dg{--ink:#1f2328;--soft:#59636e;--line:#818b98;--fill:#f6f8fa;--store:#ddf4ff;--bad:#c4221b;\
max-width:100%;height:auto;font:14px system-ui,-apple-system,"Segoe UI",sans-serif}
@media (prefers-color-scheme:dark){.dg{--ink:#e6edf3;--soft:#9aa4b0;--line:#6e7681;--fill:#22272e;\
--store:#1b3550;--bad:#ff8078}}
.dg text{fill:var(--ink)}
.dg .title{font-weight:600}
.dg .note{fill:var(--soft);font-size:12.5px}
.dg .bad{fill:var(--bad)}
.dg rect,.dg ellipse{fill:var(--fill);stroke:var(--line);stroke-width:1.2}
.dg .store{fill:var(--store)}
.dg .frame{fill:none;stroke-dasharray:5 4}
.dg .arrow{fill:none;stroke:var(--soft);stroke-width:1.4}
.dg .dashed{stroke-dasharray:5 4}
.dg .lost{stroke:var(--bad);stroke-width:2}
.dg .head{fill:var(--soft)}
</style>
<defs><marker id="dg-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" \
orient="auto-start-reverse"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>"""


class Drawing:
    """An SVG of a width and height, to which shapes are added."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self.title = title
        self.size = width, height
        self.parts: list[str] = []

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "middle") -> None:
        """Lines of text. `y` is the baseline of the first one."""
        for number, line in enumerate(text.split("\n")):
            self.parts.append(
                f'<text class="{style}" x="{x:g}" y="{y + number * LINE:g}"'
                f' text-anchor="{anchor}">{escape(line)}</text>'
            )

    def box(self, x: int, y: int, w: int, h: int, title: str, note: str = "", k: str = "") -> None:
        """A box with a title and a smaller note, both centred."""
        self.parts.append(f'<rect class="{k}" x="{x}" y="{y}" width="{w}" height="{h}" rx="7"/>')
        notes = note.split("\n") if note else []
        top = y + h / 2 + 5 - len(notes) * LINE / 2
        self.text(x + w / 2, top, title, "title")
        self.text(x + w / 2, top + LINE, note, "note") if note else None

    def frame(self, x: int, y: int, w: int, h: int, title: str) -> None:
        """A dashed frame around other shapes, with its title inside at the top left."""
        self.parts.append(f'<rect class="frame" x="{x}" y="{y}" width="{w}" height="{h}" rx="10"/>')
        self.text(x + 12, y + 21, title, "note", "start")

    def arrow(self, path: str, style: str = "", both: bool = False) -> None:
        """An arrow along an SVG path."""
        start = ' marker-start="url(#dg-head)"' if both else ""
        self.parts.append(
            f'<path class="arrow {style}" d="{path}" marker-end="url(#dg-head)"{start}/>'
        )

    def line(self, path: str, style: str = "") -> None:
        """A line along an SVG path."""
        self.parts.append(f'<path class="arrow {style}" d="{path}"/>')

    def svg(self) -> str:
        """The whole drawing."""
        width, height = self.size
        head = (
            f'<svg class="dg" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" role="img" aria-label="{escape(self.title)}">'
        )
        return "\n".join([head, STYLE, *self.parts, "</svg>", ""])


def path_of_a_job() -> Drawing:
    """From enqueue to the result, with the part of the code that does each step."""
    d = Drawing("The path of a job, from enqueue to the result", 900, 400)
    d.frame(10, 10, 250, 380, "your program")
    d.box(30, 45, 210, 52, "task.enqueue(…)", "checks arguments and options")
    d.box(30, 140, 210, 52, "sender", "all jobs that are ready, one call")
    d.box(30, 310, 210, 52, "job.result()", "waits for a signal, then reads")
    d.frame(340, 10, 200, 380, "store")
    d.box(360, 140, 160, 52, "the job", "waiting → active → …", "store")
    d.box(360, 225, 160, 52, "the event log", "same atomic step", "store")
    d.box(360, 310, 160, 52, "the result", "", "store")
    d.frame(620, 10, 270, 380, "worker")
    d.box(640, 45, 230, 52, "fetcher", "claims a job for a free slot")
    d.box(640, 140, 230, 52, "runner", "decodes the arguments")
    d.box(640, 225, 230, 52, "your handler", "loop, thread, process or program")
    d.box(640, 310, 230, 52, "core decides", "completed, retried, failed, …")
    d.arrow("M135 97V140")
    d.arrow("M240 166H360")
    d.text(300, 158, "put", "note")
    d.arrow("M520 152C580 152 580 71 640 71")
    d.text(578, 100, "lease", "note")
    d.arrow("M755 97V140")
    d.arrow("M755 192V225")
    d.arrow("M755 277V310")
    d.arrow("M640 336H520")
    d.text(580, 328, "settle", "note")
    d.arrow("M440 310V277")
    d.arrow("M360 336H240")
    d.text(300, 328, "signal", "note")
    d.text(300, 60, "InvalidJob", "note bad")
    d.arrow("M240 71H280", "lost")
    return d


def worker_loops() -> Drawing:
    """The loops of a worker and the calls that each makes."""
    d = Drawing("The loops of a worker, and the calls to the store that each makes", 900, 470)
    d.frame(10, 10, 560, 450, "a station: all loops of a worker for one store")
    loops = (
        ("fetcher", "ends runs and claims jobs, one call at a time", "settle, sleep"),
        ("notes", "progress, log lines, recorded steps", "note"),
        ("keeper, in a thread of its own", "renews leases, receives cancels", "extend"),
        ("ticker", "retention, queues that nobody claims from", "tick"),
        ("scheduler", "enqueues what is due, each time once", "fire"),
        ("pulse", "heartbeat, requests of operators", "beat"),
        ("leader", "decides which worker does the upkeep", "lead"),
    )
    for number, (name, does, call) in enumerate(loops):
        y = 45 + number * 58
        d.box(250, y, 300, 46, name, does)
        d.arrow(f"M550 {y + 23}H720", both=number < 3)
        d.text(635, y + 16, call, "note")
    d.box(720, 45, 160, 394, "store", "SQLite, PostgreSQL,\nValkey, a jq-server", "store")
    d.box(30, 45, 150, 104, "runner", "one run per slot:\nclaim → handler\n→ outcome")
    d.box(30, 180, 150, 64, "executors", "loop, threads,\nprocesses, programs")
    d.arrow("M250 62H180")
    d.text(215, 55, "leases", "note")
    d.arrow("M180 86H250")
    d.text(215, 101, "outcomes", "note")
    d.arrow("M105 149V180", both=True)
    d.text(105, 290, "your handlers can block\nthe event loop, but not\nthe keeper", "note")
    return d


def leases() -> Drawing:
    """What happens to a job whose worker dies: two workers, one job, and its lease."""
    d = Drawing("A worker dies, its lease expires, and another worker runs the job", 900, 330)
    d.text(20, 75, "worker A", "title", "start")
    d.text(20, 165, "worker B", "title", "start")
    d.text(20, 260, "the job", "title", "start")
    d.box(130, 50, 230, 40, "runs the job")
    d.line("M360 70H860", "dashed lost")
    d.text(372, 62, "killed", "bad", "start")
    for x in (130, 215, 300):
        d.arrow(f"M{x} 90V235")
    d.text(142, 112, "claim", "note", "start")
    d.text(227, 112, "renew", "note", "start")
    d.text(312, 112, "renew", "note", "start")
    d.line("M300 200H530", "dashed")
    d.text(415, 192, "one lease: 15 s by default", "note")
    d.line("M530 180V235", "lost")
    d.text(540, 192, "expired", "note bad", "start")
    d.box(570, 140, 200, 40, "runs it again")
    d.arrow("M590 235V180")
    d.arrow("M770 160H800V235")
    d.text(808, 200, "settle", "note", "start")
    for x, w, state, k in (
        (130, 400, "active, attempt 1", "store"),
        (535, 50, "stalled", ""),
        (590, 205, "active, attempt 2", "store"),
        (800, 90, "completed", "store"),
    ):
        d.parts.append(f'<rect class="{k}" x="{x}" y="238" width="{w}" height="34" rx="5"/>')
        d.text(x + w / 2, 260, state, "note")
    d.text(
        450,
        302,
        "If A was only frozen and reports later, its token no longer fits:\n"
        "the store answers `stale` and changes nothing.",
        "note",
    )
    return d


def event_log_to_lake() -> Drawing:
    """The way of an event from the store's log to tables, the audit and reports."""
    d = Drawing("From the event log of a store to the tables of a lake", 900, 300)
    d.box(15, 105, 150, 80, "store", "every call appends\nto the log", "store")
    d.box(225, 40, 150, 62, "jq-relay", "marks what it\nhas delivered")
    d.box(435, 40, 150, 62, "Kafka or files", "JSON, schema v1")
    d.box(435, 185, 150, 62, "jq-pipeline run", "reads each event\nonce")
    d.box(
        655,
        105,
        230,
        80,
        "lake",
        "events, attempts, jobs, keys, …\nParquet, Delta, Iceberg",
        "store",
    )
    d.arrow("M165 125C195 125 195 71 225 71")
    d.arrow("M375 71H435")
    d.arrow("M510 102V185")
    d.arrow("M165 165C195 165 195 216 225 216H435")
    d.text(300, 208, "or directly from the store", "note")
    d.arrow("M585 216C625 216 615 145 655 145")
    d.text(770, 222, "audit: no event is missing, no job lost", "note")
    d.text(770, 241, "report, SLOs, failures by error, erasure", "note")
    d.line("M770 185V205")
    d.arrow("M770 105V15H90V105", "dashed")
    d.text(430, 31, 'df.write.format("jobq") enqueues rows', "note")
    return d


# The arrows of the drawing of states: an SVG path, and where its label is.
DRAWN: dict[tuple[str, str], tuple[str, float, float]] = {
    ("", "delayed"): ("M70 205C110 205 110 75 150 75", 78, 130),
    ("", "waiting"): ("M70 215H400", 115, 208),
    ("", "blocked"): ("M70 225C110 225 110 355 150 355", 78, 310),
    ("delayed", "waiting"): ("M270 85C340 95 330 180 400 200", 372, 130),
    ("blocked", "waiting"): ("M270 345C340 335 330 250 400 230", 376, 310),
    ("waiting", "active"): ("M520 205H650", 585, 197),
    ("active", "waiting"): ("M650 228C630 262 540 262 520 228", 585, 275),
    ("active", "delayed"): ("M690 190C660 30 420 20 270 68", 500, 30),
    ("active", "blocked"): ("M690 240C660 400 420 410 270 362", 500, 412),
    ("active", "completed"): ("M770 200C820 180 810 75 860 75", 770, 120),
    ("active", "failed"): ("M770 215H860", 815, 207),
    ("active", "cancelled"): ("M770 230C820 250 810 355 860 355", 772, 322),
}
PLACES = {
    State.DELAYED: (150, 55),
    State.BLOCKED: (150, 335),
    State.WAITING: (400, 195),
    State.ACTIVE: (650, 195),
    State.COMPLETED: (860, 55),
    State.FAILED: (860, 195),
    State.CANCELLED: (860, 335),
}


def states() -> Drawing:
    """The states and the usual transitions, with labels from the table."""
    d = Drawing("The states of a job and the usual transitions between them", 1000, 430)
    d.parts.append('<ellipse cx="58" cy="215" rx="10" ry="10"/>')
    for state, (x, y) in PLACES.items():
        d.box(x, y, 120, 40, str(state), k="store" if state in ENDED else "")
    kinds = labels()
    for ends, (path, label_x, label_y) in DRAWN.items():
        d.arrow(path)
        text = ", ".join(kinds[ends])
        d.text(label_x, label_y, text.replace("stalled, ", "stalled,\n"), "note")
    return d


def labels() -> dict[tuple[str, str], list[str]]:
    """The kinds of events that lead from one state to another."""
    ordered = sorted(TRANSITIONS, key=_ends)
    return {
        ends: list(dict.fromkeys(str(step.kind) for step in steps))
        for ends, steps in groupby(ordered, key=_ends)
        if ends[0] != ends[1]  # a change of arguments moves nothing
    }


def _ends(step: Transition) -> tuple[str, str]:
    return (str(step.previous or ""), str(step.state))


DRAWINGS = {
    "path-of-a-job": path_of_a_job,
    "worker-loops": worker_loops,
    "leases": leases,
    "event-log": event_log_to_lake,
    "states": states,
}


def main(arguments: list[str]) -> int:
    """Write the drawings, or check them."""
    wrong = 0
    for name, draw in DRAWINGS.items():
        file, text = FOLDER / f"{name}.svg", draw().svg()
        if "--check" not in arguments:
            FOLDER.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            print(f"{file.name} is not up to date: run python -m scripts.diagrams", file=sys.stderr)
            wrong = 1
    return wrong


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
