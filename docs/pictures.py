"""Draw the pictures of the report that the docs show: ``python docs/pictures.py``, with chromium and Pillow installed.

They are made from the logs in examples/incidents: docs/incident-*.png show the verdict and what happened over time,
docs/report-laptop.png and docs/report-phone.png the top of a whole page.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parent
INCIDENTS = DOCS.parent / "examples" / "incidents"
SIZE_MAX = 250_000
"""Bytes of one picture."""
DEADLINE_S = 120
ONLY_THE_INCIDENT = """
  section:not(#verdict, #time), nav, footer, dl.facts, .tiles, #time > .note { display: none }
  main, header.top { max-width: none; padding: 0 16px } header.top { padding-top: 14px }
  section { margin: 10px 0 }
"""
"""Style that leaves the verdict and the chart over time of a page."""


@dataclass(frozen=True)
class Picture:
    """One picture of a report."""

    name: str
    incident: str
    width_px: int
    height_px: int
    """At most; what is empty below is cut off."""
    style: str = ""


PICTURES = (
    Picture("incident-stall", "stall", 1200, 1400, ONLY_THE_INCIDENT),
    Picture("incident-env-bound", "env_bound", 1200, 1400, ONLY_THE_INCIDENT),
    Picture("incident-weight-sync", "weight_sync", 1200, 1400, ONLY_THE_INCIDENT),
    Picture("report-laptop", "stall", 1280, 1500),
    Picture("report-phone", "stall", 390, 1500),
)


def main() -> None:
    """Draw all pictures, or exit with what is missing."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("chromium is not installed: the pictures are drawn by a browser")
    try:
        import PIL  # noqa: F401 - to say at once that it is missing
    except ModuleNotFoundError:
        sys.exit("Pillow is not installed: pip install pillow")
    with tempfile.TemporaryDirectory() as folder:
        for picture in PICTURES:
            file = DOCS / f"{picture.name}.png"
            draw(picture, file, chromium, Path(folder))
            print(f"{file} ({file.stat().st_size:,} bytes)")
            if file.stat().st_size > SIZE_MAX:
                sys.exit(f"{file} is larger than {SIZE_MAX:,} bytes")


def draw(picture: Picture, file: Path, chromium: str, folder: Path) -> None:
    """Write the report of the picture's incident, and photograph it."""
    page, raw = folder / f"{picture.name}.html", folder / f"{picture.name}.png"
    eventrain = [sys.executable, "-m", "eventrain.adapters.cli", "report"]
    subprocess.run(
        [*eventrain, str(INCIDENTS / picture.incident), "-o", str(page)], check=True, timeout=DEADLINE_S
    )
    text = page.read_text("utf-8").replace("</head>", f"<style>{picture.style}</style></head>", 1)
    text = text.replace(str(INCIDENTS), "examples/incidents")
    page.write_text(text, "utf-8")
    frame = folder / f"{picture.name}-frame.html"  # a browser's own window cannot be as narrow as a phone
    frame.write_text(
        f'<body style="margin:0"><iframe src="{page.as_uri()}" style="border:0;width:{picture.width_px}px;'
        f'height:{picture.height_px}px"></iframe>',
        "utf-8",
    )
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=6000")
    size = f"--window-size={max(picture.width_px, 600)},{picture.height_px}"
    shot = [
        chromium,
        *flags,
        f"--user-data-dir={folder / 'profile'}",
        size,
        f"--screenshot={raw}",
        frame.as_uri(),
    ]
    subprocess.run(shot, check=True, timeout=DEADLINE_S, capture_output=True)
    crop(raw, file, picture.width_px)


def crop(raw: Path, file: Path, width_px: int) -> None:
    """Save a photo without what is empty at its right and bottom."""
    from PIL import Image, ImageChops

    with Image.open(raw) as photo:
        image = photo.convert("RGB").crop((0, 0, width_px, photo.height))
    paper = Image.new("RGB", image.size, image.getpixel((0, image.height - 1)))
    box = ImageChops.difference(image, paper).getbbox()
    bottom = image.height if box is None else min(image.height, box[3] + 12)
    image.crop((0, 0, image.width, bottom)).save(file, optimize=True)


if __name__ == "__main__":
    main()
