"""The page about everything, as the report's own tests have it."""

from tests.report.conftest import whole_page  # noqa: F401  (pytest finds it here)
