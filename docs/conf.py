"""The site of these pages: `make docs`. Sphinx, with Markdown by MyST, and the theme furo."""

import claimjobs

project = "claimjobs"
author = "the authors of claimjobs"
release = version = claimjobs.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "claimjobs"
html_copy_source = False
html_extra_path = ["llms.txt"]

myst_heading_anchors = 4
myst_enable_extensions = ["fieldlist"]

default_role = "code"  # the docstrings are written so
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
