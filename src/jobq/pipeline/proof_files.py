"""The audit's own files in a lake: what is proved, and the jobs at that point.

    LAKE/_jobq/audit/proof.json          the proof (`proof.Proof`), written last and atomically
    LAKE/_jobq/audit/proof/N/open/       the last events of jobs that have not ended
    LAKE/_jobq/audit/proof/N/ended/      the last events of jobs that ended in this audit
    LAKE/_jobq/audit/proof/N/ahead/      events that wait for earlier ones

An audit that is killed leaves the previous proof as it was. Folders that no proof names any more
are deleted by the audit after the next one, because another audit may be reading them.

Every audit adds a folder of ended jobs. Ten folders of about the same size are merged into one, so
that their number grows with the logarithm of the jobs.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobq.pipeline.formats import Part
from jobq.pipeline.lake import Lake
from jobq.pipeline.proof import Proof
from jobq.pipeline.tables import EVENTS, MARKS, Table, struct
from jobq.pipeline.transforms.conservation import HELD, TIP

_MERGE = 10  # folders of ended jobs of about the same size that become one

Folders = tuple[tuple[str, int], ...]


class ProofFiles:
    """The proof of one lake."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.root = lake, f"{lake.root}/_jobq/audit"
        self._name = uuid.uuid4().hex[:12]

    def load(self) -> Proof | None:
        """The last proof, or None if there is none that this version can continue."""
        text = self.lake.files.read(f"{self.root}/proof.json")
        proof = None if text is None else msgspec.json.decode(text, type=Proof)
        return proof if proof is not None and proof.version == Proof().version else None

    def forget(self) -> None:
        """Remove the proof. The next audit reads everything."""
        self.lake.files.delete(f"{self.root}/proof.json")

    # ── what to read ──────────────────────────────────────────────────────────────────────────────

    def arrived(self, table: Table, proof: Proof, upto: int) -> DataFrame:
        """The rows of a table that arrived after the proof, in batches up to `upto`.

        Rows of lakes before arrivals were counted belong to batch 0."""
        if not proof.arrival:
            found = self.lake.read(table)
            return found.where(F.coalesce("arrival", F.lit(0)) <= upto)
        found = self.lake.read(table, self._touched(table, proof, upto))
        return found.where(F.col("arrival").between(proof.arrival + 1, upto))

    def _touched(self, table: Table, proof: Proof, upto: int) -> list[Part] | None:
        """The partitions that these batches touched, from the notes about them. None for all.

        Without them, every audit would list all files of the table."""
        name = {EVENTS.name: "hours", MARKS.name: "marks"}.get(table.name)
        if name is None:
            return None
        found = [note.get(name) for note in self._notes(proof, upto)]
        if len(found) != upto - proof.arrival or None in found:
            return None
        return sorted({Part.of(path) for paths in found for path in paths or ()})

    def _notes(self, proof: Proof, upto: int) -> list[dict[str, list[str] | None]]:
        base = f"{self.lake.root}/_jobq/batches"
        names = [
            f"{base}/{day}/{name}"
            for day in self.lake.files.children(base)
            if day >= f"day={proof.day}"
            for name in self.lake.files.children(f"{base}/{day}")
            if name[:12].isdigit() and proof.arrival < int(name[:12]) <= upto
        ]
        return [msgspec.json.decode(self.lake.files.read(name) or "{}") for name in names]

    def open(self, proof: Proof) -> DataFrame | None:
        """The tips of jobs that had not ended."""
        return self._tips(proof.open) if proof.open else None

    def ended(self, proof: Proof) -> DataFrame | None:
        """The tips of jobs that had ended. A job that was rerun has several."""
        return self._tips(*(name for name, _ in proof.ended)) if proof.ended else None

    def ahead(self, proof: Proof) -> DataFrame | None:
        """The events that waited for earlier ones."""
        if not proof.ahead:
            return None
        return self.lake.spark.read.schema(EVENTS.schema).parquet(self._path(proof.ahead))

    def _tips(self, *names: str) -> DataFrame:
        return self.lake.spark.read.schema(struct(TIP)).parquet(*map(self._path, names))

    def _path(self, name: str) -> str:
        return f"{self.root}/proof/{name}"

    # ── what to write ─────────────────────────────────────────────────────────────────────────────

    def save(
        self,
        proof: Proof,
        old: Proof | None,
        tips: DataFrame,
        *,
        ended: int,
        ahead: DataFrame | None,
    ) -> Proof:
        """Store a proof that continues `old`.

        `tips` are those of all jobs that are open or were checked, `ended` of which have ended, and
        `ahead` the events that wait."""
        is_open = F.col("state").isin(HELD)
        folders: Folders = () if old is None else old.ended
        name = f"{self._name}/open"
        self._write(tips.where(is_open), name)
        if ended:
            fresh = f"{self._name}/ended"
            self._write(tips.where(~is_open), fresh)
            folders = self._merged((*folders, (fresh, ended)))
        waits = ""
        if ahead is not None:
            waits = f"{self._name}/ahead"
            self._write(ahead, waits)
        done = msgspec.structs.replace(proof, open=name, ahead=waits, ended=folders)
        text = msgspec.json.format(msgspec.json.encode(done)).decode()
        self.lake.files.write(f"{self.root}/proof.json", text)
        self._sweep(done, old)
        return done

    def _write(self, rows: DataFrame, name: str) -> None:
        rows.coalesce(8).write.mode("overwrite").parquet(self._path(name))

    def _merged(self, folders: Folders) -> Folders:
        """Merge folders of about the same size, by the number of digits of their rows."""
        sizes = [len(str(rows)) for _, rows in folders]
        for size in sorted({*sizes}):
            same = [folder for folder, digits in zip(folders, sizes, strict=True) if digits == size]
            if len(same) >= _MERGE:
                name = f"{self._name}/ended-{size}"
                self._write(self._tips(*(folder for folder, _ in same)), name)
                rest = tuple(folder for folder in folders if folder not in same)
                return self._merged((*rest, (name, sum(rows for _, rows in same))))
        return folders

    def _sweep(self, proof: Proof, old: Proof | None) -> None:
        """Delete folders that neither this proof nor the one before it names."""
        named: Sequence[str] = [
            name
            for kept in (proof, old)
            if kept is not None
            for name in (kept.open, kept.ahead, *(folder for folder, _ in kept.ended))
        ]
        used = {name.split("/")[0] for name in named}
        for folder in self.lake.files.children(f"{self.root}/proof"):
            if folder not in used:
                self.lake.files.delete(f"{self.root}/proof/{folder}")
