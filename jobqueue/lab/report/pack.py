"""The pack: review.html, review.pdf and review.zip in one folder; the same stored runs give the same bytes.

All of it is made beside and renamed, so an interrupt leaves no half of a pack.
"""

import hashlib
import html
import io
import json
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from tqdm.auto import tqdm

from ...errors import InvalidInput, JobQueueError
from .. import export, style
from . import decisions, document, evidence, figures, markup, pages, runs
from .blocks import Figure
from .document import Review
from .making import STEPS
from .runs import Stored

HTML, PDF, ZIP, PRINTED = "review.html", "review.pdf", "review.zip", "review-chromium.pdf"
OURS = {HTML, PDF, ZIP, PRINTED}
EPOCH = (1980, 1, 1, 0, 0, 0)  # a zip knows no earlier time
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PRINT_SECONDS = 120
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
         "--no-pdf-header-footer")  # fmt: skip


@dataclass(frozen=True)
class Pack:
    """What was written, and the review that it says."""

    folder: Path
    review: Review

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if path.name in OURS)

    @property
    def held(self) -> bool:
        """No stored evidence says that a promise is broken. A target that is not met is a finding, no failure."""
        return all(piece.verdict != "BROKEN" for piece in self.review.pieces)

    def decisions(self) -> pd.DataFrame:
        """The table of the decisions, each with the figure that shows it."""
        return document.decided(self.review)

    def evidence(self) -> pd.DataFrame:
        return evidence.table(list(self.review.pieces))

    def figure(self, slug: str) -> style.Sheet:
        """One of its charts, by name: `figures.slugs()`."""
        return self.review.figure(slug).sheet

    def __str__(self) -> str:
        return decisions.summary(list(self.review.decisions))

    def __repr__(self) -> str:
        """Shows no folder of this machine."""
        return f"{', '.join(path.name for path in self.files)} in {'/'.join(self.folder.absolute().parts[-3:])}"

    def _repr_html_(self) -> str:
        """Links that a notebook can follow."""
        places = [(path.name, os.path.relpath(path)) for path in self.files]
        return " · ".join(f'<a href="{html.escape(place)}" target="_blank">{name}</a>' for name, place in places)


def read(
    name: str, title: str, *, directory: Path | None = None, revision: str | None = None, progress: bool = True
) -> Review:
    """The review of a stored set; InvalidInput where the set is not whole. directory: of all sets (`runs.home`)."""
    found = runs.load_set(runs.folder(name, directory))
    missing = [step.name for step in STEPS if step.name not in found]
    if missing:
        have = ", ".join(runs.sets(directory)) or "none"
        raise InvalidInput(f"the stored set {name!r} lacks {', '.join(missing)}; stored sets: {have}")
    found = {step.name: found[step.name] for step in STEPS}
    stored = (directory or runs.home()) / runs.EVIDENCE
    with _of_this_version(name, found):
        bears = decisions.bearing(decisions.needed(found), stored)
        decided = decisions.decide(found, bears)
    with tqdm(total=len(figures.slugs()), unit="chart", desc="charts", disable=not progress, leave=False) as bar:
        drawn = figures.draw(found, bears, lambda _: bar.update())
    facts = export.provenance(postgres=found["load"].postgres, seed=found["load"].seed, revision=revision)
    told = {"set": name, "revision": facts["revision"], "versions": facts["versions"]}
    pieces = evidence.gather(found["explorer"], stored)
    return Review(title, found, decided, pieces, drawn, told)


@contextmanager
def _of_this_version(name: str, found: Mapping[str, Stored]) -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        made = ", ".join(sorted({run.revision for run in found.values()}))
        raise InvalidInput(f"the stored set {name!r} (made by git {made}) has no {error}: it is of another version; "
                           "make it again from its load") from error  # fmt: skip


def write(review: Review, out: Path, *, replace: bool = False, chromium: bool = False, progress: bool = True) -> Pack:
    """The pack in `out`, which must be new or empty; `replace` allows a pack of ours that lies there."""
    out = checked(out, replace=replace)
    browser = found_browser() if chromium else None
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        for name, content in _contents(review, progress).items():
            (beside / name).write_bytes(content)
        if browser:
            _printed(browser, beside / HTML, beside / PRINTED)
        os.chmod(beside, 0o755)
        _moved(beside, out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return Pack(out, review)


def checked(out: Path, *, replace: bool = False) -> Path:
    """The folder to write; InvalidInput where something lies there that this would overwrite."""
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"{out} is a file: --out names a folder")
    there = sorted(path.name for path in out.iterdir()) if out.exists() else []
    if there and not replace:
        raise InvalidInput(f"{out} is not empty ({there[0]}, …): nothing is overwritten, give a new name")
    if there and not _is_pack(out, there):
        raise InvalidInput(f"{out} holds something that is no review pack ({_stranger(out, there)}): give a new name")
    parent = next(one for one in [out, *out.absolute().parents] if one.exists())
    if not os.access(parent, os.W_OK):
        raise InvalidInput(f"{out} can't be written: no permission in {parent}")
    return out


def _is_pack(out: Path, there: Sequence[str]) -> bool:
    return set(there) <= OURS and HTML in there and markup.GENERATOR in (out / HTML).read_text("utf-8")[:2000]


def _stranger(out: Path, there: Sequence[str]) -> str:
    return next((name for name in there if name not in OURS), HTML)


def _moved(beside: Path, out: Path) -> None:
    """Into the place of an empty folder or of an older pack, whole."""
    if not out.exists():
        os.rename(beside, out)
        return
    for path in sorted(beside.iterdir()):
        os.replace(path, out / path.name)
    for name in OURS - {path.name for path in beside.iterdir()} - {HTML, PDF, ZIP}:
        (out / name).unlink(missing_ok=True)  # what an older pack had and this one has not


def _contents(review: Review, progress: bool) -> dict[str, bytes]:
    blocks = document.blocks(review)
    files = _members(review, progress)
    drawn = {figure.slug: files[f"figures/{_name(figure)}.svg"] for figure in review.figures}
    page, printed = markup.page(review.title, blocks, drawn), pages.render(review.title, blocks)
    members = {HTML: page, PDF: printed, **files}
    return {HTML: page, PDF: printed, ZIP: _zipped(members, review)}


def _members(review: Review, progress: bool) -> dict[str, bytes]:
    members = {f"tables/{name}.csv": export.csv(frame) for name, frame in document.tables(review).items()}
    for figure in tqdm(review.figures, unit="figure", desc="files", disable=not progress, leave=False):
        members |= {f"figures/{name}": content for name, content in _files(figure).items()}
    return members


def _name(figure: Figure) -> str:
    return f"{figure.number:02}-{figure.slug}"


def _files(figure: Figure) -> dict[str, bytes]:
    """As `export.save` writes them, into memory."""
    about = dict(figure.parameters)
    facts = export.provenance(postgres=about.pop("postgres", None), seed=about.pop("seed", None),
                              revision=about.pop("revision", None), **about)  # fmt: skip
    name, title = _name(figure), figure.sheet.finding
    tables = {f"{name}.csv" if len(figure.frames) == 1 else f"{name}-{key}.csv": export.csv(frame)
              for key, frame in figure.frames.items()}  # fmt: skip
    drawn = {f"{name}.{kind}": draw(figure.sheet, title, facts)
             for kind, draw in (("svg", export.svg), ("png", export.png), ("pdf", export.pdf))}  # fmt: skip
    files = drawn | tables
    return files | {f"{name}.md": export.caption(f"{figure.label}: {title}", facts, files)}


def _zipped(members: Mapping[str, bytes], review: Review) -> bytes:
    told = {
        "title": review.title,
        **review.provenance,
        "runs": {name: _run(run) for name, run in review.found.items()},
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in sorted(members.items())},
    }
    content = {**members, "provenance.json": (json.dumps(told, indent=1, ensure_ascii=False) + "\n").encode()}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in sorted(content):
            entry = zipfile.ZipInfo(f"review/{name}", EPOCH)
            entry.compress_type, entry.external_attr, entry.create_system = zipfile.ZIP_DEFLATED, 0o644 << 16, 3
            archive.writestr(entry, content[name])
    return out.getvalue()


def _run(run: Stored) -> dict:
    facts = {"seed": run.seed, "parameters": run.parameters, "figures": run.figures, "postgres": run.postgres}
    return facts | {"revision": run.revision, "versions": run.versions}


def found_browser() -> str:
    """Chromium's path; InvalidInput where there is none."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise InvalidInput(f"--chromium: none of {', '.join(BROWSERS)} is on PATH; review.pdf needs none of them")
    return browser


def _printed(browser: str, page: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="jobqueue-chromium-") as profile:
        command = [browser, *FLAGS, f"--user-data-dir={profile}", f"--print-to-pdf={target}", page.absolute().as_uri()]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=PRINT_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            raise JobQueueError(f"Chromium could not print the review: {error}") from error
    if not target.exists():
        raise JobQueueError("Chromium printed nothing")
