"""The dashboard's libraries are the files that were released, and no page loads anything else."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

WEB = files("jobq.web")
VENDOR = WEB / "static" / "vendor"


def test_the_vendored_files_are_those_of_the_list() -> None:
    lines = [line.split("  ", 1) for line in (VENDOR / "SHA256SUMS").read_text().splitlines()]
    listed = {name: digest for digest, name in lines}
    found = {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest()
        for each in VENDOR.iterdir()
        if each.name not in ("SHA256SUMS", "README.md")
    }
    assert found == listed


def test_every_library_has_its_version_and_its_licence_in_the_readme() -> None:
    text = (VENDOR / "README.md").read_text()
    for each in VENDOR.iterdir():
        if each.name.endswith((".js", ".css")):
            named = re.fullmatch(r"(.+)-([\d.]+)\.min\.\w+", each.name)
            assert named is not None
            library, version = named.groups()
            assert f"`{each.name}`" in text
            assert f"| {version} |" in text
            assert (VENDOR / f"{library}-LICENSE.txt").is_file()


def test_pages_name_no_other_host_and_contain_no_inline_script_or_style() -> None:
    for each in (WEB / "templates").rglob("*.html"):  # type: ignore[attr-defined]
        text = each.read_text()
        assert not re.search(r"https?://", text), each.name
        assert not re.search(r"<script(?![^>]*\ssrc=)", text), each.name
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", text), each.name
        assert "|safe" not in text.replace(" ", ""), each.name
