"""Package registries on this machine: pip and npm install from a `Site` instead of the internet."""

import base64
import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from file_server import Site


def use_registries(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point pip and npm to the site, with empty caches."""
    for name, value in {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": site.url("simple"),
        "PIP_FIND_LINKS": "",
        "PIP_NO_CACHE_DIR": "1",
        "npm_config_registry": site.url(""),
        "npm_config_cache": str(cache),
        "npm_config_update_notifier": "false",
    }.items():
        monkeypatch.setenv(name, value)


def add_wheel(site: Site, name: str, files: dict[str, bytes]) -> bytes:
    """Publish version 1.0 of a Python package with these files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as wheel:
        info = f"{name}-1.0.dist-info"
        for path, content in {
            **files,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": b"",
        }.items():
            wheel.writestr(path, content)
    file = f"{name}-1.0-py3-none-any.whl"
    site.files[f"simple/{name}/"] = f'<a href="{site.url(file)}">{file}</a>'.encode()
    site.files[file] = buffer.getvalue()
    return buffer.getvalue()


def add_npm_package(site: Site, name: str, files: dict[str, bytes]) -> bytes:
    """Publish version 1.0.0 of an npm package with these files."""
    buffer = io.BytesIO()
    manifest = {"name": name, "version": "1.0.0"}
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, content in {"package.json": json.dumps(manifest).encode(), **files}.items():
            entry = tarfile.TarInfo(f"package/{path}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    file, content = f"{name}-1.0.0.tgz", buffer.getvalue()
    integrity = f"sha512-{base64.b64encode(hashlib.sha512(content).digest()).decode()}"
    version = {**manifest, "dist": {"tarball": site.url(file), "integrity": integrity}}
    packument = {"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    site.files[name] = json.dumps(packument).encode()
    site.files[file] = content
    return content
