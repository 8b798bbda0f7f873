"""`make release`: builds the sdist and the wheel, and tries each in an empty environment.

Nothing is uploaded. For each of the two files: install it without extras, check that no heavy
dependency came along, import every module, and run the README's quickstart and the command lines.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"

NEEDS_AN_EXTRA = {
    "jobq.django": {"django", "asgiref"},
    "jobq.encryption": {"cryptography"},
    "jobq.mypy": {"mypy"},
    "jobq.otel": {"opentelemetry"},
    "jobq.pipeline": {"pyspark", "py4j", "pyarrow", "pandas", "prometheus_client"},
    "jobq.prometheus": {"prometheus_client"},
    "jobq.relay.kafka": {"confluent_kafka"},
    "jobq.rpc": {"grpc", "google"},
    "jobq.sentry": {"sentry_sdk"},
    "jobq.server": {
        "cryptography",
        "google",
        "grpc",
        "grpc_health",
        "grpc_reflection",
        "jwt",
        "prometheus_client",
    },
    "jobq.server.hints": {"hiredis"},
    "jobq.stores.postgres": {"psycopg"},
    "jobq.stores.remote": {"grpc", "google"},
    "jobq.stores.valkey": {"hiredis"},
    "jobq.testing.fake_worker": {"grpc", "google"},
    "jobq.web": {"jinja2", "starlette"},
}
"""Modules that may fail to import without extras, and the packages whose absence may be why."""

HEAVY = {"pyspark", "pyarrow", "pandas", "py4j", "numpy", "matplotlib", "confluent-kafka", "pytest"}
"""Packages that `pip install jobq` must not bring."""

EXPECTED = "sent 'Hello' to ada@example.org"
"""What the quickstart prints."""

IMPORT_ALL = """
import importlib, json, pkgutil, sys
import jobq
failed = {}
names = [m.name for m in pkgutil.walk_packages(jobq.__path__, "jobq.", onerror=lambda name: None)]
for name in names:
    if name.endswith("__main__"):
        continue
    try:
        importlib.import_module(name)
    except Exception as e:  # jobq.web says in a ConfigError which package is missing
        missing = e if isinstance(e, ImportError) else e.__cause__
        if not isinstance(missing, ImportError):
            raise
        failed[name] = (missing.name or str(missing)).partition(".")[0]
print(json.dumps({"imported": len(names) - len(failed), "failed": failed}))
"""


class Refused(Exception):
    """A check failed; the message says which, and what to do."""


# ── what is decided ───────────────────────────────────────────────────────────────────────────────


def changes(status: str) -> list[str]:
    """The paths in the output of `git status --porcelain`."""
    return [line[3:] for line in status.splitlines() if line.strip()]


def is_final(version: str) -> bool:
    """Whether a version is one for everybody, and not a pre-release."""
    return re.fullmatch(r"\d+(\.\d+)*", version) is not None


def not_ready(version: str, changelog: str, urls: Iterable[str]) -> list[str]:
    """What keeps a final version from being released. A pre-release may lack all of it."""
    if not is_final(version):
        return []
    found = []
    if f"## [{version}]" not in changelog:
        found.append(f"CHANGELOG.md has no section [{version}]: rename [Unreleased]")
    if any(".example/" in url for url in urls):
        found.append("project.urls in pyproject.toml are placeholders: write the real addresses")
    return found


def quickstart(readme: str) -> str:
    """The first Python block of the README: what a new user pastes."""
    block = re.search(r"^```python[^\n]*\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    if block is None:
        raise Refused("README.md has no Python block to try")
    return block[1]


def unexpected(failed: dict[str, str]) -> list[str]:
    """Modules that cannot be imported, and should be without extras. `failed`: module → missing."""
    return [
        f"{module} (needs {missing})"
        for module, missing in sorted(failed.items())
        if not any(
            (module == package or module.startswith(f"{package}.")) and missing in packages
            for package, packages in NEEDS_AN_EXTRA.items()
        )
    ]


# ── what is done ──────────────────────────────────────────────────────────────────────────────────


def say(text: str) -> None:
    """One line per check."""
    print(f"✓ {text}", flush=True)


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """The output of a command. Refused, with all it said, if it fails."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        shown = " ".join(str(word) for word in command)[:200]
        raise Refused(
            f"{shown}\nfailed with exit code {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def build() -> list[Path]:
    """The sdist, and the wheel that is made of it."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST)
    made = sorted(DIST.iterdir())
    if [path.suffix for path in made] != [".whl", ".gz"]:
        raise Refused(f"the build left {[path.name for path in made]}, not a wheel and an sdist")
    for path in made:
        say(f"built {path.name} ({path.stat().st_size / 1000:.0f} kB)")
    run(sys.executable, "-m", "twine", "check", "--strict", *made)
    say("twine check --strict: the metadata is valid, and the README can be rendered")
    return made


def try_out(package: Path, version: str, folder: Path) -> None:
    """Install a package into an empty environment, and use it as a new user would."""
    environment = folder / f"env-{package.suffix[1:]}"
    venv.create(environment, with_pip=True)
    bin = environment / ("Scripts" if sys.platform == "win32" else "bin")
    python = bin / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package)
    listed = run(python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check")
    names = {entry["name"].lower() for entry in json.loads(listed)} - {"pip", "setuptools"}
    if heavy := names & HEAVY:
        raise Refused(f"{package.name} without extras brings {', '.join(sorted(heavy))}")
    say(f"{package.name}: installs without extras, with {len(names) - 1} dependencies, no Spark")

    work = folder / f"work-{package.suffix[1:]}"
    work.mkdir()
    found = json.loads(run(python, "-W", "error", "-c", IMPORT_ALL, cwd=work))
    if missing := unexpected(found["failed"]):
        raise Refused(f"{package.name}: cannot be imported without extras: {', '.join(missing)}")
    say(f"{package.name}: {found['imported']} modules can be imported without extras")
    typed = (
        "import jobq, pathlib; print((pathlib.Path(jobq.__file__).parent / 'py.typed').exists())"
    )
    if run(python, "-c", typed, cwd=work).strip() != "True":
        raise Refused(f"{package.name} has no py.typed: type checkers would ignore its annotations")

    (work / "quickstart.py").write_text(quickstart((ROOT / "README.md").read_text("utf-8")))
    if EXPECTED not in (said := run(python, "-W", "error", "quickstart.py", cwd=work)):
        raise Refused(f"{package.name}: the README's quickstart printed {said!r}")
    say(f"{package.name}: the README's quickstart prints {EXPECTED!r}")
    status = run(bin / "jq-ctl", "--url", "sqlite:///mail.db", "-o", "json", "status", cwd=work)
    json.loads(status)
    for command in ("jq-ctl", "jq-worker", "jq-server", "jq-relay", "jq-pipeline"):
        if version not in (said := run(bin / command, "--version", cwd=work)):
            raise Refused(f"{package.name}: {command} --version printed {said!r}, not {version}")
    say(f"{package.name}: jq-ctl reads the store, and every command is version {version}")


def release(*, dirty: bool) -> None:
    """All checks, in order."""
    if (changed := changes(run("git", "status", "--porcelain"))) and not dirty:
        raise Refused(
            f"{len(changed)} files are not committed ({', '.join(changed[:5])}): commit them, "
            "or run make release DIRTY=yes to try the build all the same"
        )
    say("the working tree is clean" if not changed else f"{len(changed)} files are not committed")
    namespace: dict[str, str] = {}
    exec((ROOT / "src/jobq/core/version.py").read_text("utf-8"), namespace)
    version = namespace["__version__"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    if problems := not_ready(version, changelog, project["urls"].values()):
        raise Refused(f"version {version} cannot be released: " + "; ".join(problems))
    kind = "a final version" if is_final(version) else "a pre-release"
    say(f"version {version}, {kind}")
    packages = build()
    with tempfile.TemporaryDirectory(prefix="jobq-release-") as folder:
        for package in packages:
            try_out(package, version, Path(folder))
    print(f"\nBoth files in {DIST.relative_to(ROOT)}/ were tried. Nothing was uploaded.")
    if is_final(version):
        print(f"To publish: git tag v{version}, then twine upload {DIST.relative_to(ROOT)}/*")
        print("Then add this release to RELEASED in tests/stores (see CONTRIBUTING.md).")


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--dirty", action="store_true", help="allow files that are not committed")
    try:
        release(dirty=parser.parse_args(arguments).dirty)
    except Refused as e:
        print(f"✗ {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
