from __future__ import annotations

from pathlib import Path

import pytest
from support.mixed_folder import make


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with jobs in every state on its first shard, and the ids of one queue's; to be copied."""
    folder = tmp_path_factory.mktemp("mixed") / "data"
    return folder, make(folder)
