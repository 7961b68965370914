"""The pages of the site that are not in docs/, and the links that leave it. MkDocs calls these functions."""

import re
from pathlib import Path
from posixpath import normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
"""Documents at the root of the repository, and their names among the pages."""
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
"""The path in a Markdown link, unless it is an address or leads to a place on the same page."""
BADGE = re.compile(r"^\[?!\[[^\]]*\]\(https://img\.shields\.io/.*\n", re.MULTILINE)
"""A line with a badge, which comes from another host. The site asks no other host for anything, so it has no badges."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the documents at the root."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Returns the page with links that lead to pages of the site, or to the file in the repository if it has no page.

    A link that leads nowhere stays as it is, so MkDocs names it and the build fails.
    """
    at_root = page.file.src_uri in PAGES.values()

    def target(link: re.Match[str]) -> str:
        path = normpath(link[1] if at_root else f"docs/{link[1]}")
        inside = PAGES.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(inside) is not None:
            return inside
        return f"{config.repo_url}/blob/main/{path}" if (ROOT / path).exists() else link[1]

    return LINK.sub(target, BADGE.sub("", markdown))
