"""The marker of most tests of this folder."""

import pytest

dear = pytest.mark.thorough(
    "it starts processes, which takes seconds: `make test` has twenty such tests, the main ends"
)
