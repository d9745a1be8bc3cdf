"""Builds the site of the documentation: every link within it has a target."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tfdist
import tfdist.estimator
from tests.support.pages import PAGES, ROOT, blocks, readme_script

pytestmark = pytest.mark.stacks("2.15")

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. `-W` turns a warning, such as a missing target or page, into an error."""
    path = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run([*command, DOCS, path], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return path


def test_each_page_is_built(site: Path) -> None:
    pages = [page.relative_to(DOCS).with_suffix(".html") for page in PAGES if DOCS in page.parents]
    assert len(pages) > 40
    assert [page for page in pages if not (site / page).exists()] == []


def test_the_public_names_are_described(site: Path) -> None:
    page = (site / "api.html").read_text()
    for module in (tfdist, tfdist.estimator):
        for name in module.__all__:
            if name != "__version__":
                assert f'id="{module.__name__}.{name}"' in page
    assert 'id="tfdist.Job.fit"' in page
    assert "the total number of epochs" in page


def test_the_tutorial_has_the_script_of_the_readme() -> None:
    script, *_ = blocks(DOCS / "tutorial.md", "python")
    assert script == readme_script()


@pytest.mark.parametrize("page", sorted((DOCS / "strategies").glob("*.md")), ids=lambda p: p.stem)
def test_a_page_of_a_strategy_begins_with_why(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.stem}\n\n## Why\n\nChoose it for ")
    why = text.split("\n## ")[1]
    assert "**What it guarantees.**" in why
    assert "**What it costs.**" in why


def test_each_strategy_has_a_page() -> None:
    from tfdist.config.strategies.table import rows

    assert {page.stem for page in (DOCS / "strategies").glob("*.md")} == set(rows())
