"""`flameche keys`: makes key files and shows them."""

import json

import pytest

from tests.cli.conftest import refused


def test_keys_are_made_and_never_replaced(call, tmp_path):
    code, out, _ = call("keys", "new", "site", "--scheme", "ckks", "--clients", 7)
    assert code == 0 and "client.key" in out and "server.pub" in out
    assert (tmp_path / "site" / "client.key").stat().st_mode & 0o077 == 0
    refused(call("keys", "new", "site"), "never replaced")
    for scheme, why in (("plain", "no keys"), ("secagg", "no keys"), ("rsa", "not known")):
        answer = call("keys", "new", "other", "--scheme", scheme)
        refused(answer, why, "paillier, bfv, ckks, ckks-paper")
        assert "plain," not in answer[2] and "secagg," not in answer[2]
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("scheme", ["bfv", "ckks", "ckks-paper", "paillier"])
@pytest.mark.parametrize(
    "words",
    [
        *(("--bound", bound) for bound in ("nan", "inf", "-inf", "-1", "0")),
        ("--key-bits", 17),
        ("--clients", 10**30),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_impossible_keys_are_one_line_and_exit_code_2(call, tmp_path, scheme, words):
    refused(call("keys", "new", "site", "--scheme", scheme, *words))
    assert not (tmp_path / "site").exists()


def test_a_folder_made_for_keys_is_private_to_its_owner(call, tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    call("keys", "new", "open")
    call("keys", "new", "made/here")
    assert (tmp_path / "made" / "here").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o755  # not ours to change


def test_no_client_key_is_written_next_to_the_server_part_of_another_key(call, tmp_path):
    call("keys", "new", "site")
    (tmp_path / "site" / "client.key").unlink()
    refused(call("keys", "new", "site"), "server.pub exists")
    assert [file.name for file in (tmp_path / "site").iterdir()] == ["server.pub"]


@pytest.mark.parametrize("scheme", ["bfv", "ckks", "paillier"])
def test_keys_are_shown_without_their_secrets(call, tmp_path, scheme):
    words = ("--scheme", scheme, "--clients", 7, "--bound", 2, "--key-bits", 2048)
    made = json.loads(call("keys", "new", "site", *words, "--json")[1])
    assert made["client"] == "site/client.key" and made["server"] == "site/server.pub"
    facts = {"scheme": scheme, "clients": 7, "bound": 2.0}
    for name, part in (("client.key", "secret"), ("server.pub", "public")):
        shown = json.loads(call("keys", "show", f"site/{name}", "--json")[1])
        assert shown["part"] == part and facts.items() <= shown.items() and facts.items() <= made.items()
        assert shown["fingerprint"] == made["fingerprint"]
        _, text, _ = call("keys", "show", f"site/{name}")
        assert all(word in text for word in (part, scheme, "7 clients", "up to 2;", made["fingerprint"]))
        assert len(text) < 400
    (tmp_path / "some.txt").write_text("x")
    refused(call("keys", "show", "some.txt"), "some.txt", "not a key file")


def test_a_run_uses_a_key_file_and_a_wrong_one_is_one_line(call, experiment, tmp_path):
    call("keys", "new", "site", "--clients", 8)
    words = ("run", experiment, "--device", "cpu", "--set", "scheme.kind=bfv", "--set")
    code, out, err = call(*words, "scheme.key_file=site/client.key")
    assert code == 0 and "scheme" in out and "bfv" in out
    assert err.count("held back by scheme.min_cluster = 3") == 1
    refused(call(*words, "scheme.key_file=site/server.pub"), "site/server.pub: this is the server's part")
    refused(call(*words, "scheme.key_file=site"), "site is not a file")
    call("keys", "new", "few", "--clients", 7)
    refused(call(*words, "scheme.key_file=few/client.key"), "few/client.key", "7 clients")
