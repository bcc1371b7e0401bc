"""Certificates and the keys of nodes."""

import ssl

import pytest

from flameche.errors import BadInput

flwr = pytest.importorskip("flwr", reason="needs Flower: pip install 'flameche[flower]'")

from flameche.flower.certificates import make_certificates, make_node_key  # noqa: E402


def test_a_certificate_is_good_for_its_hosts_and_loopback_alone(tmp_path):
    made = make_certificates(tmp_path, ["link.example"])
    assert made.key.stat().st_mode & 0o077 == 0
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.certificate, made.key)
    assert [_greets(server, made.ca, name) for name in ("127.0.0.1", "link.example", "else.example")] == [
        True, True, False,
    ]  # fmt: skip
    stranger = make_certificates(tmp_path / "other", ["127.0.0.1"])
    assert not _greets(server, stranger.ca, "127.0.0.1")


def _greets(server, ca, name):
    """Shake hands in memory."""
    client = ssl.create_default_context(cafile=str(ca))
    a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
    one, other = client.wrap_bio(a, b, server_hostname=name), server.wrap_bio(b, a, server_side=True)
    done = set()
    try:
        for _ in range(6):
            for who in (one, other):
                try:
                    who.do_handshake()
                    done.add(who)
                except ssl.SSLWantReadError:
                    pass
    except ssl.SSLError:
        return False
    return len(done) == 2


def test_keys_are_never_replaced(tmp_path):
    secret, public = make_node_key(tmp_path, "node.key")
    assert secret.stat().st_mode & 0o077 == 0 and public.read_text().startswith("ecdsa-sha2-nistp384")
    with pytest.raises(BadInput, match="never replaced"):
        make_node_key(tmp_path, "node.key")
    make_certificates(tmp_path, ["localhost"])
    with pytest.raises(BadInput, match="never replaced"):
        make_certificates(tmp_path, ["localhost"])
    with pytest.raises(BadInput, match="not a host name"):
        make_certificates(tmp_path / "x", ["ü.example"])
