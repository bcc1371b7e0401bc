import os
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flameche.crypto.keyfile import read_info, read_public, read_secret, write_public, write_secret
from flameche.crypto.registry import keyed_schemes, make_scheme, secret_bytes
from flameche.errors import BadInput


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


@pytest.mark.skipif(os.name != "posix", reason="needs the file modes of POSIX")
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
    for mode in (0o600, 0o644):  # what it is comes before who may read it
        (folder / "server.pub").chmod(mode)
        with pytest.raises(BadInput, match=r"server\.pub: this is the server's part"):
            read_secret(folder / "server.pub")
    with pytest.raises(BadInput, match=r"client\.key: this is the clients' part"):
        read_public(folder / "client.key")


def test_the_secret_is_not_in_the_servers_file(written):
    _, folder = written
    assert len((folder / "server.pub").read_bytes()) < 1000 < len((folder / "client.key").read_bytes())


@pytest.mark.parametrize("cut", [0, 5, 15, 18, 19, 40, 1000, -1])
def test_truncated_files_are_named(written, cut):
    _, folder = written
    file = folder / "client.key"
    file.write_bytes(file.read_bytes()[:cut])
    for read in (read_secret, read_public, read_info):
        with pytest.raises(BadInput, match=rf"{file}.*(damaged|not a key)"):
            read(file)


@pytest.mark.parametrize(
    "text",
    [b"hello", b"flameche key 1\n", b"flameche key 1\nrsa\nx", b"flameche key 1\nplain\nx", b"\xff" * 99],
)
def test_foreign_files_are_named(tmp_path, text):
    (tmp_path / "some.key").write_bytes(text)
    for read in (read_secret, read_public, read_info):
        with pytest.raises(BadInput, match=r"some\.key is not a key file"):
            read(tmp_path / "some.key")


def test_a_key_under_another_schemes_name_is_refused(written):
    _, folder = written
    file = folder / "client.key"
    for other in ("ckks", "paillier"):
        file.write_bytes(file.read_bytes().replace(b"\nbfv\n", f"\n{other}\n".encode(), 1))
        with pytest.raises(BadInput, match=r"client\.key: "):
            read_secret(file)
        file.write_bytes(file.read_bytes().replace(f"\n{other}\n".encode(), b"\nbfv\n", 1))


def test_what_is_not_a_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(BadInput, match="is not a file"):
            read_secret(path)
    with pytest.raises(BadInput, match="cannot be read"):
        read_secret(tmp_path / "nowhere.key")


@pytest.mark.parametrize("kind", keyed_schemes())
def test_both_files_tell_what_anybody_may_know_and_the_same_of_one_key(kind, tmp_path):
    own, other = (make_scheme(kind, clients=5, bound=2.5, key_bits=2048) for _ in range(2))
    write_secret(tmp_path / "client.key", own)
    write_public(tmp_path / "server.pub", own)
    secret, public = read_info(tmp_path / "client.key"), read_info(tmp_path / "server.pub")
    assert secret.secret and not public.secret
    assert replace(secret, secret=False) == public
    assert (secret.scheme, secret.clients, secret.bound) == (kind, 5, 2.5)
    assert secret.bits == (2048 if kind == "paillier" else None)
    assert secret == own.info != other.info
    assert secret.fingerprint != other.info.fingerprint
    text, key = repr(secret).encode(), secret_bytes(own)
    assert not any(key[i : i + 12] in text for i in range(0, len(key), 12))


@pytest.mark.parametrize("bound", [float("nan"), float("inf"), -1.0, 0.0])
@pytest.mark.parametrize("kind", keyed_schemes())
def test_a_bound_that_is_no_bound_is_refused(kind, bound):
    with pytest.raises(BadInput, match="above 0"):
        make_scheme(kind, clients=5, bound=bound)


def test_a_scheme_without_keys_has_no_key_file(tmp_path):
    with pytest.raises(BadInput, match="no lasting keys"):
        write_secret(tmp_path / "client.key", make_scheme("plain", clients=5))
