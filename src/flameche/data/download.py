"""Fetch published files with pooch, each against its known checksum; fail fast without a network."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

from flameche.data.sources import CIFAR_ARCHIVE, CIFAR_BIN, Source
from flameche.errors import DataError

TIMEOUT_S = 10


def fetch(source: Source, names: Sequence[str], folder: Path, remedy: str) -> None:
    """Download the files `names` of `source` to `folder`; when that fails, a DataError with `remedy`."""
    if os.environ.get("FLAMECHE_OFFLINE", "") not in ("", "0"):
        raise DataError(f"{remedy} (FLAMECHE_OFFLINE is set, so nothing was downloaded)")
    if not source.url:
        raise DataError(f"{remedy} (it has no publisher to download from)")
    try:
        if source.kind == "cifar":
            _fetch_archive(source, folder)
        else:
            for name in names:
                packed = f"{name}.gz" if source.kind == "idx" else name
                _retrieve(source.url + packed, source.files[name].download, folder, packed)
    except (OSError, ValueError, tarfile.TarError) as error:  # requests' errors are OSErrors
        raise DataError(f"{remedy} (download from {source.url} failed: {type(error).__name__})") from error


def _retrieve(url: str, known_hash: str, folder: Path, name: str) -> Path:
    import pooch  # here, not above: only a download needs it

    downloader = pooch.HTTPDownloader(timeout=TIMEOUT_S)
    return Path(pooch.retrieve(url, known_hash=known_hash, fname=name, path=folder, downloader=downloader))


def _fetch_archive(source: Source, folder: Path) -> None:
    name = source.url.rsplit("/", 1)[-1]
    archive = _retrieve(source.url, CIFAR_ARCHIVE, folder, name)
    (folder / CIFAR_BIN).mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in (name for name in source.files if name.startswith(CIFAR_BIN)):
            packed = tar.extractfile(member)
            if packed is None:
                raise ValueError(f"{member} is not a file in the archive")
            (folder / member).write_bytes(packed.read())
    archive.unlink()
