"""How Sphinx builds the site: python -m sphinx -W -b html docs build/docs"""

from __future__ import annotations

import tfdist

project = "tfdist"
release = tfdist.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "tfdist"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["names.css"]
# A word between single backquotes in a docstring is code.
default_role = "code"
autodoc_member_order = "bysource"
# Two hyphens stay two, so that a flag in prose can be copied.
smartquotes_action = "qe"
# Links name headings of these levels by their text, as GitHub does.
myst_heading_anchors = 3

try:
    import tfdist.estimator
except ImportError:
    # TensorFlow 2.16 and newer has no Estimators: the page of the API leaves them out.
    suppress_warnings = ["autodoc.import_object"]
