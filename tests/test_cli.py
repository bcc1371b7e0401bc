import json
import subprocess
import sys

import numpy as np
import pytest
import typer
from rich.text import Text
from typer.main import get_command

import flameche
from flameche import cli
from flameche.answering import answer
from flameche.errors import BadInput, ConfigError, SealError
from flameche.methods.sketch import FEWEST

TOML = """
rounds = 3
participation = 0.5
[data]
clients = 8
per_label = 6
heterogeneity = "csf"
label_skew = false
[training]
epochs = 1
batch = 32
threads = 1
[method]
kind = "flameche"
mode = "paper"
tau = 2
"""


@pytest.fixture
def experiment(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(TOML)
    return file


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run the command line in a folder of its own; return exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["flameche", *map(str, words)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return run


def refused(answer, *said):
    code, out, err = answer
    assert code == 2 and out == ""
    assert err.count("\n") == 1 and "Traceback" not in err
    for words in said:
        assert words in err


def test_run_prints_one_json_document_and_nothing_else(call, experiment):
    code, out, _ = call("run", experiment, "--device", "cpu", "--json", "--out", "r")
    summary = json.loads(out)
    assert code == 0 and summary["method"] == "flameche" and summary["rounds"] == 3


def test_several_seeds_are_a_list_and_one_can_be_picked(call, experiment):
    _, out, _ = call("cluster", experiment, "--set", "seeds=[0,1]", "--json")
    assert [s["seed"] for s in json.loads(out)] == [0, 1]
    _, out, _ = call("cluster", experiment, "--set", "seeds=[0,1]", "--seed", 7, "--json")
    assert json.loads(out)["seed"] == 7


def test_run_then_report(call, experiment, tmp_path):
    for kind in ("flameche", "fedavg", "oracle"):
        code, out, _ = call("run", experiment, "--set", f"method.kind={kind}", "--device", "cpu")
        assert code == 0 and kind in out.lower()
    code, out, _ = call("report", "runs", "--out", "page")
    page = (tmp_path / "page" / "report.html").read_text()
    assert code == 0 and out.strip() == "page/report.html"
    assert all(name in page for name in ("FLAMECHE", "FedAvg", "Oracle"))


def test_lists(call):
    for command, word in (("methods", "flameche"), ("datasets", "digits"), ("schemes", "bfv")):
        code, out, _ = call(command)
        assert code == 0 and word in out
        code, out, _ = call(command, "--json")
        assert any(word in row.values() for row in json.loads(out))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.epoch=3", "training.epochs"),
        ("method.clusters=8", "must be below data.clients"),
        ("participation=0", "participation"),
        ("participation=1.5", "participation"),
        ("data.per_label=60", "data.per_label"),
        ("model.kind=lenet5", "at least 12 pixels"),
        ("model.kind=resnet", "resnet18"),
        ("data.path=nowhere.npz", "nowhere.npz"),
        ("method.kind=ifac", "method.kind"),
        ("rounds", "rounds"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(call, experiment, override, said):
    refused(call("run", experiment, "--set", override), said)


def commands(group=None, path=()):
    """Every command, by the words that call it."""
    for name, command in (group or get_command(cli.app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


@pytest.mark.parametrize(("path", "command"), [pytest.param(*c, id=" ".join(c[0])) for c in commands()])
def test_wrong_words_are_one_line_and_exit_code_2_for_every_command(call, path, command):
    refused(call(*path, "--no-such-option"), "--no-such-option", f"{' '.join(path)} --help")
    for option in command.params:
        if option.param_type_name == "option" and option.type.name.startswith(("integer", "float")):
            refused(call(*path, option.opts[0], "x"), option.opts[0], "'x'")
            if getattr(option.type, "min", None) is not None:
                refused(call(*path, option.opts[0], option.type.min - 1), option.opts[0], "not in the range")
        elif option.param_type_name == "argument" and option.required:
            refused(call(*path), "missing argument")


def test_a_command_that_is_none_is_one_line_and_a_group_alone_shows_its_help(call):
    refused(call("demoo"), "no such command 'demoo'", "flameche --help")
    for words in ((), ("bench",), ("keys",)):
        code, out, err = call(*words)
        assert code == 2 and "Usage: flameche" in out + err
    assert call("demo", "--help")[0] == 0


@pytest.mark.parametrize(
    ("raised", "code"),
    [(None, 0), (typer.Exit(3), 3), (BadInput("no"), 2), (SealError("no"), 1), (KeyboardInterrupt(), 130)],
)
def test_a_command_ends_with_the_code_of_what_it_raised(monkeypatch, capsys, raised, code):
    app = typer.Typer()

    @app.command()
    def only():
        if raised is not None:
            raise raised

    monkeypatch.setattr(sys, "argv", ["flameche"])
    try:
        answer(app)
        ended = 0
    except SystemExit as stop:
        ended = stop.code
    assert ended == code
    assert capsys.readouterr().err == ("flameche: no\n" if code in (1, 2) else "")


def test_how_many_clients_choosing_k_takes_is_said_before_and_when_it_is_refused(call, experiment):
    said = " ".join(call("select-k", "--help")[1].split())
    assert f"takes {FEWEST} clients at least" in said
    few = ("--set", "data.clients=5", "--set", "data.groups=2", "--set", "method.clusters=2")
    guarded = call("select-k", experiment, "--device", "cpu", *few, "--set", "scheme.min_cluster=3")
    refused(guarded, "5 clients are too few for scheme.min_cluster = 3, which takes 6")


def test_k_is_not_chosen_in_the_clear_under_a_scheme_that_would_seal_nothing(call, experiment):
    other = ("--device", "cpu", "--set", "method.kind=ifca", "--set", "method.clusters=2")
    sealed = call("select-k", experiment, *other, "--set", "scheme.kind=bfv")
    refused(sealed, 'scheme.kind = "bfv": method.kind = "ifca" has no metadata to seal', "in the clear")
    assert call("select-k", experiment, *other, "--set", "scheme.kind=plain")[0] == 0


def test_bad_files_are_one_line_and_exit_code_2(call, experiment, tmp_path):
    refused(call("run", "nowhere.toml"), "nowhere.toml", "no such file")
    (tmp_path / "broken.toml").write_text("rounds = ")
    refused(call("run", "broken.toml"), "broken.toml", "line 1")
    refused(call("report", "nowhere"), "nowhere")
    (tmp_path / "file").write_text("")
    refused(call("run", experiment, "--out", "file"), "cannot be written")
    refused(call("run", experiment, "--device", "tpu"), "expected auto, cpu or cuda")


def test_bad_data_are_one_line_and_exit_code_2(call, experiment, tmp_path):
    rng = np.random.default_rng(0)
    images = rng.random((60, 8, 8)).astype(np.float32)
    labels = np.repeat(np.arange(3), 20)
    good = {
        f"{s}_{k}": v for s in ("train", "val", "test") for k, v in (("images", images), ("labels", labels))
    }
    words = ("--set", "data.path=own.npz", "--set", "data.per_label=2", "--set", "data.clients=8")
    np.savez(tmp_path / "own.npz", **good)
    assert call("cluster", experiment, *words)[0] == 0
    spoilt = images.copy()
    spoilt[3, 4, 4] = np.nan
    np.savez(tmp_path / "own.npz", **{**good, "train_images": spoilt})
    refused(call("cluster", experiment, *words), "NaN")
    np.savez(tmp_path / "own.npz", **{**good, "train_labels": labels - 1})
    refused(call("cluster", experiment, *words), "labels")
    (tmp_path / "own.npz").write_bytes((tmp_path / "own.npz").read_bytes()[:300])
    refused(call("cluster", experiment, *words), "own.npz")


def test_a_failed_command_loses_nothing_that_was_written(call, experiment, tmp_path):
    call("run", experiment, "--device", "cpu")
    before = {f: f.read_bytes() for f in (tmp_path / "runs").rglob("*") if f.is_file()}
    refused(call("run", experiment, "--set", "data.per_label=60"))
    refused(call("run", experiment, "--set", "nonsense=1"))
    after = {f: f.read_bytes() for f in (tmp_path / "runs").rglob("*") if f.is_file()}
    assert {f: data for f, data in after.items() if f in before} == before


def test_a_bug_is_one_line_and_exit_code_1_and_debug_shows_it(call, experiment, monkeypatch):
    from flameche.experiments import run as module

    def broken(*_args, **_kwargs):
        raise RuntimeError("boom\nsecond line")

    monkeypatch.setattr(module, "build", broken)
    code, _, err = call("cluster", experiment)
    assert code == 1 and err.count("\n") == 1 and "boom" in err and "--debug" in err
    with pytest.raises(RuntimeError, match="boom"):
        call("--debug", "cluster", experiment)


def test_a_refused_run_leaves_no_empty_folder(call, experiment, tmp_path):
    refused(call("run", experiment, "--set", "data.per_label=60"))
    assert not list((tmp_path / "runs").rglob("*")) or not any(
        path.is_dir() and not any(path.iterdir()) for path in (tmp_path / "runs" / "small").rglob("*")
    )


def test_a_run_that_was_finished_earlier_says_so(call, experiment):
    call("run", experiment, "--device", "cpu")
    code, out, err = call("run", experiment, "--device", "cpu")
    assert code == 0 and "finished earlier" in err and "FLAMECHE" in out


def test_a_run_of_other_sources_is_told_and_run_again_with_fresh(call, experiment, tmp_path):
    first = json.loads(call("run", experiment, "--device", "cpu", "--json")[1])
    (file,) = (tmp_path / "runs").rglob("summary.json")
    file.write_text(json.dumps({**first, "sources": {"flameche": "other"}, "accuracy": 0.4321}))
    said = "this run was made by other sources of flameche; --fresh runs it again"
    for form in ((), ("--json",)):
        code, out, err = call("run", experiment, "--device", "cpu", *form)
        assert code == 0 and ("43.21" in out or "0.4321" in out) and err.count(said) == 1
    code, out, err = call("run", experiment, "--device", "cpu", "--json", "--fresh")
    assert code == 0 and said not in err and json.loads(out)["accuracy"] == first["accuracy"]
    assert call("cluster", experiment, "--fresh")[0] == 0
    assert call("select-k", experiment, "--set", "data.clients=12", "--k", "1..3", "--fresh")[0] == 0


@pytest.mark.parametrize("fresh", [False, True])
def test_what_to_do_after_a_stop_is_said(call, experiment, monkeypatch, fresh):
    def stopped(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("flameche.experiments.run.run_experiment", stopped)
    code, out, err = call("run", experiment, *(["--fresh"] if fresh else []))
    assert code == 130 and out == "" and ("continues from the last checkpoint" in err) == (not fresh)
    # With --fresh, seeds that it had not come to are still what they were.
    said = (
        "without --fresh continues what was begun; stored runs that were not begun anew are shown as they are"
    )
    assert (said in err) == fresh


def test_metadata_that_are_not_finite_are_refused_before_they_are_clustered(call, experiment):
    words = ("--set", "model.kind=tests.nets:Rooted", "--device", "cpu")
    said = "metadata of clients 0, 1, 2, 3, 4 and 3 more hold NaN or infinity", "model.kind"
    for command, *more in (("cluster",), ("run",), ("select-k", "--set", "data.clients=12")):
        code, out, err = call(command, experiment, *words, *more)
        assert code == 2 and out == "" and err.count("\n") == 1
        assert said[0].replace("3 more", "7 more" if more else "3 more") in err and said[1] in err


def test_a_run_that_diverged_says_so_in_its_table_and_its_report(call, experiment, tmp_path):
    how = ("--device", "cpu", "--set", "training.optimiser=sgd", "--set", "training.lr=1e30")
    code, out, err = call("run", experiment, *how)
    assert code == 1 and out.splitlines()[-1].split()[-4] == "diverged"
    assert "training diverged" in err and "lower training.lr" in err and "Runs: runs/small/" in err
    code, out, _ = call("run", experiment, *how, "--json")  # it is stored, and diverged all the same
    summary = json.loads(out)
    assert code == 1 and summary["diverged"] and summary["accuracy"] is None
    assert call("report", "runs", "--out", "page")[0] == 0
    page = (tmp_path / "page" / "report.html").read_text()
    assert "<td class=num>diverged</td>" in page and "lower training.lr and run it again" in page
    shown = 100 * summary["accuracy_per_round"][-1]
    assert f"{shown:.2f}" not in (tmp_path / "page" / "tables" / "summary.md").read_text()


def test_no_table_compares_clusters_with_groups_that_there_are_not(call, experiment):
    words = ("--set", "data.heterogeneity=none", "--device", "cpu")
    assert "ARI" in call("cluster", experiment, "--device", "cpu")[1]
    for command in ("cluster", "run"):
        code, out, _ = call(command, experiment, *words)
        assert code == 0 and "DBI" in out and "ARI" not in out and "final" not in out
    code, out, _ = call("select-k", experiment, *words, "--set", "data.clients=12", "--k", "1..3")
    assert code == 0 and {line.split()[-1] for line in out.splitlines()[2:5]} == {"–"}


def test_clustering_needs_a_method_that_clusters(call, experiment):
    refused(call("cluster", experiment, "--set", "method.kind=fedavg"), "nothing to do without training")


def test_help_lists_the_commands():
    answer = subprocess.run(
        [sys.executable, "-m", "flameche", "--help"], capture_output=True, text=True, check=True
    )
    for command in ("demo", "run", "cluster", "report", "methods", "datasets"):
        assert command in answer.stdout


def test_importing_flameche_brings_neither_torch_nor_any_optional_package():
    code = (
        "import sys, flameche\n"
        "heavy = {'torch', 'tenseal', 'gmpy2', 'cryptography', 'pooch', 'flwr', 'ray', 'pandas'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_an_experiment_may_be_given_by_its_path_as_text(experiment):
    described = flameche.load_experiment(str(experiment))
    assert described == flameche.load_experiment(experiment)
    found = [
        flameche.cluster(way, device="cpu")["assignment"] for way in (described, experiment, str(experiment))
    ]
    assert found[0] == found[1] == found[2]


def test_the_library_runs_a_stored_run_again_where_it_is_asked_to(experiment, tmp_path):
    first = flameche.run(experiment, out=tmp_path / "runs", device="cpu")
    (file,) = (tmp_path / "runs").rglob("summary.json")
    file.write_text(json.dumps({**first, "accuracy": 0.123}))
    assert flameche.run(experiment, out=tmp_path / "runs", device="cpu")["accuracy"] == 0.123
    again = flameche.run(experiment, out=tmp_path / "runs", device="cpu", fresh=True)
    assert again["accuracy"] == first["accuracy"]


@pytest.mark.parametrize("function", [flameche.cluster, flameche.run])
def test_what_is_no_experiment_is_refused_in_a_line(function):
    with pytest.raises(ConfigError, match=r"not a dict; flameche\.experiment\(.*\) makes an experiment"):
        function({"rounds": 2})


def test_dir_lists_the_functions_of_the_package():
    assert set(flameche.__all__) <= set(dir(flameche)) and "__version__" in dir(flameche)


def test_the_version_is_printed(call):
    assert call("--version") == (0, f"flameche {flameche.__version__}\n", "")


def texts_of(command):
    """The help of a command, its options and its own commands."""
    yield from (text for text in (command.help, *(getattr(p, "help", None) for p in command.params)) if text)
    for below in getattr(command, "commands", {}).values():
        yield from texts_of(below)


def test_no_help_loses_its_brackets(call):
    texts = list(texts_of(get_command(cli.app)))
    assert len(texts) > 60
    for text in texts:
        assert Text.from_markup(text).plain == text.replace("\\[", "[")
    said = " ".join(call("assign", "--help")[1].replace("│", "").split())
    assert "x [n H W], [n Ch H W] or [n H W Ch]; y [n]." in said


def test_a_folder_with_brackets_in_its_name_is_printed_whole(call, experiment):
    for _ in range(2):
        code, _, err = call("run", experiment, "--device", "cpu", "--out", "runs [old]")
        assert code == 0 and "Runs: runs [old]/small/" in err
    assert "read from runs [old]/small/" in err


def test_a_run_in_the_clear_needs_no_cryptographic_package(experiment):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from flameche.api import cluster, load_experiment\n"
        f"cluster(load_experiment(Path({str(experiment)!r})))\n"
        "heavy = {'tenseal', 'gmpy2', 'cryptography', 'pooch', 'flwr', 'ray'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_keys_are_made_and_never_replaced(call, tmp_path):
    code, out, _ = call("keys", "new", "site", "--scheme", "ckks", "--clients", 7)
    assert code == 0 and "client.key" in out and "server.pub" in out
    assert (tmp_path / "site" / "client.key").stat().st_mode & 0o077 == 0
    refused(call("keys", "new", "site"), "never replaced")
    for scheme, why in (("plain", "no keys"), ("secagg", "no keys"), ("rsa", "not known")):
        answer = call("keys", "new", "other", "--scheme", scheme)
        refused(answer, why, "bfv, ckks, ckks-paper, paillier")
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


def test_a_folder_made_for_keys_is_its_owners_alone(call, tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    call("keys", "new", "open")
    call("keys", "new", "made/here")
    assert (tmp_path / "made" / "here").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o755  # not ours to change


def test_no_half_of_a_key_is_left_beside_another_ones(call, tmp_path):
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


def test_a_key_file_serves_a_run_and_a_wrong_one_is_one_line(call, experiment, tmp_path):
    call("keys", "new", "site", "--clients", 8)
    words = ("run", experiment, "--device", "cpu", "--set", "scheme.kind=bfv", "--set")
    code, out, err = call(*words, "scheme.key_file=site/client.key")
    assert code == 0 and "scheme" in out and "bfv" in out
    assert err.count("held back by scheme.min_cluster = 3") == 1
    refused(call(*words, "scheme.key_file=site/server.pub"), "site/server.pub: this is the server's part")
    refused(call(*words, "scheme.key_file=site"), "site is not a file")
    call("keys", "new", "few", "--clients", 7)
    refused(call(*words, "scheme.key_file=few/client.key"), "few/client.key", "7 clients")


def test_every_command_that_prints_results_takes_json(call, experiment):
    """As README says; demo and bench are asked for their options only."""
    call("run", experiment, "--device", "cpu")
    assert json.loads(call("report", "runs", "--json")[1]) == {"report": "report/report.html"}
    for words in (
        *(
            ("demo",),
            ("run",),
            ("cluster",),
            ("select-k",),
            ("report",),
            ("methods",),
            ("schemes",),
            ("datasets",),
        ),
        *(("keys", "new"), ("keys", "show"), ("bench", "crypto")),
    ):
        assert "--json" in call(*words, "--help")[1], words


def test_schemes_say_which_can_protect_updates(call):
    rows = json.loads(call("schemes", "--json")[1])
    assert {row["scheme"] for row in rows if row["updates"]} == {"secagg", "ckks"}
