import os
import stat

import numpy as np
import pytest

from flameche.crypto.keyfile import read_public, read_secret, write_public, write_secret
from flameche.crypto.registry import make_scheme
from flameche.errors import BadInput, FlamecheError, SealError


@pytest.fixture
def written(tmp_path):
    scheme = make_scheme("bfv", clients=5)
    write_secret(tmp_path / "client.key", scheme)
    write_public(tmp_path / "server.pub", scheme)
    return scheme, tmp_path


def test_clients_and_server_work_from_their_files(written):
    scheme, folder = written
    key, adder = read_secret(folder / "client.key").client_key(), read_public(folder / "server.pub")
    total = adder.add([adder.load(key.seal(np.array([1.0, 2.0]))) for _ in range(3)])
    assert np.allclose(scheme.client_key().open(total.to_bytes()), [3.0, 6.0], atol=1e-5)


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_the_secret_is_its_owners_alone(written):
    _, folder = written
    assert stat.S_IMODE((folder / "client.key").stat().st_mode) == 0o600
    (folder / "client.key").chmod(0o644)
    with pytest.raises(BadInput, match="chmod 600"):
        read_secret(folder / "client.key")


def test_a_key_is_never_replaced(written):
    scheme, folder = written
    before = (folder / "client.key").read_bytes()
    with pytest.raises(BadInput, match="never replaced"):
        write_secret(folder / "client.key", scheme)
    assert (folder / "client.key").read_bytes() == before


def test_the_servers_file_opens_nothing(written):
    _, folder = written
    (folder / "server.pub").chmod(0o600)
    with pytest.raises(SealError, match="server's part"):
        read_secret(folder / "server.pub")


def test_the_secret_is_not_in_the_servers_file(written):
    _, folder = written
    assert len((folder / "server.pub").read_bytes()) < 1000 < len((folder / "client.key").read_bytes())


@pytest.mark.parametrize("cut", [5, 40, 1000])
def test_truncated_and_foreign_files_are_named(written, cut):
    _, folder = written
    whole = (folder / "client.key").read_bytes()
    (folder / "client.key").write_bytes(whole[:cut])
    with pytest.raises(FlamecheError, match=r"damaged|not a key"):
        read_secret(folder / "client.key")
    with pytest.raises(BadInput, match="cannot be read"):
        read_secret(folder / "nowhere.key")


def test_a_scheme_without_keys_has_no_key_file(tmp_path):
    with pytest.raises(BadInput, match="no lasting keys"):
        write_secret(tmp_path / "client.key", make_scheme("plain", clients=5))
