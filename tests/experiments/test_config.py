"""Experiment descriptions: what is accepted, how it is written, and what the refusals say."""

from __future__ import annotations

import ast
import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from flameche.errors import ConfigError
from flameche.experiments import error_messages, events, overrides
from flameche.experiments.config import config_hash, load_experiment, parse_experiment, to_toml
from flameche.experiments.schema import DataConfig, Experiment
from flameche.methods.fedavg import FedAvgOptions
from flameche.methods.oracle import OracleOptions
from flameche.methods.sketch import FlamecheOptions
from flameche.registry import METHODS, MODELS

unhurried = settings(deadline=None)  # other tests may hold the cores


def parse(*sets: str, **tables: Any) -> Experiment:
    return parse_experiment({"name": "x", **tables}, sets)


def refusal(*sets: str, **tables: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(*sets, **tables)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert caught.value.exit_code == 2
    return message.removeprefix("config: ")


# One change per field that determines a result, each to a value that is not the default.
CHANGES: dict[str, Any] = {
    "rounds": 7,
    "participation": 0.5,
    "events": [{"round": 3, "kind": "drift", "clients": [1, 2], "to": 1}],
    "data.dataset": "mnist",
    "data.path": "mine.npz",
    "data.groups": [60, 40],
    "data.clients": 50,
    "data.per_label": 10,
    "data.holdout": 0.3,
    "data.heterogeneity": "fds",
    "data.transforms": ["rotate:0", "rotate:90", "rotate:180", "swap:1,7"],
    "data.label_skew": False,
    "data.skew_split": "authors",
    "data.missing_labels": 2,
    "data.missing_by": "group",
    "data.score": "own",
    "data.order": "file",
    "data.test_split": "val",
    "data.allow_fewer": True,
    "data.zoom": "resize",
    "partition.kind": "dirichlet",
    "model.kind": "my.models:build",
    "model.head": "fc2",
    "training.epochs": 1,
    "training.batch": 16,
    "training.lr": 1,
    "training.trainer": "loop",
    "training.weighting": "samples",
    "training.optimiser": "sgd",
    "training.momentum": 0.5,
    "training.server_lr": 0.2,
    "training.absent": "stay",
    "training.bn_buffers": "local",
    "training.augment": True,
    "training.turn": 20.0,
    "training.drop_last": True,
    "training.evaluate_every": 5,
    "training.precision": "bf16",
    "metadata.kind": "subspace",
    "metadata.components": 3,
    "metadata.samples": "train",
    "scheme.kind": "bfv",
    "scheme.bound": 8.0,
    "scheme.min_cluster": 5,
    "scheme.key_bits": 2048,
    "scheme.key_file": "site/client.key",
    "scheme.updates": "ckks",
    "metadata.seed": 0,
    "privacy.epsilon": 2.0,
    "privacy.delta": 1e-6,
    "privacy.noise": "seeded",
    "method.kind": "fedavg",
    "method.clusters": 3,
    "method.most_clusters": 6,
    "method.tau": 0,
    "method.empty": "seen",
    "method.init": "vectors",
    "method.mode": "paper",
    "method.m_step": "participants",
    "method.unit_norm": True,
    "method.missing": "zero",
    "method.recluster_last": True,
    "method.recluster_over": "participants",
    "method.hide_assignments": True,
}
OF_OTHER_METHODS: dict[str, dict[str, Any]] = {
    "flameche-soft": {
        "clusters": 3,
        "most_clusters": 6,
        "family": "spherical",
        "training": "weighted",
    },
    "fedavg": {},
    "oracle": {},
    "ifca": {"clusters": 3, "restarts": 1, "first": "random"},
    "fesem": {"clusters": 3, "start": "shared", "layer": "fc2", "newcomers": "first"},
    "fedgroup": {"clusters": 3, "cold_rounds": 1, "newcomers": "weights"},
    "stocfl": {"clusters": 3, "threshold": 0.5, "mu": 0.0, "first": "adam"},
    "kfed": {"clusters": 3},
    "pacfl": {"clusters": 3, "components": 2, "angle": "raw-cosine", "linkage": "complete", "alpha": 3.5},
}
WITH: dict[str, dict[str, Any]] = {  # what an option needs
    "most_clusters": {"clusters": "auto"},
}
KINDS = f"{', '.join(METHODS)}, or 'package.module:Class'"
WITHOUT_INFLUENCE = {
    "name": "other",
    "seeds": [3, 1],
    "training.threads": 2,
    "training.memory": 4.5,
    "callbacks": ["a.b:C"],
}
NEEDED_BY: dict[str, dict[str, Any]] = {
    **{f"method.{key}": {"method": {"mode": "paper"}} for key in FlamecheOptions.PAPER_ONLY},
    "method.most_clusters": {"method": {"clusters": "auto"}},
    "training.momentum": {"training": {"optimiser": "sgd"}},
    "data.missing_by": {"data": {"missing_labels": 1}},
    "training.turn": {"training": {"augment": True}},
    "method.hide_assignments": {"method": {"mode": "paper"}, "scheme": {"kind": "bfv", "updates": "ckks"}},
    "privacy.delta": {"privacy": {"epsilon": 1.0}},
    "privacy.noise": {"privacy": {"epsilon": 1.0}},
}


def unchanged(key: str) -> Experiment:
    return parse(**NEEDED_BY.get(key, {}))


def changed(key: str, value: Any) -> Experiment:
    section, _, leaf = key.rpartition(".")
    needed = NEEDED_BY.get(key, {})
    tables = {section: {**needed.get(section, {}), leaf: value}} if section else {leaf: value}
    return parse(**{**needed, **tables})


def all_keys() -> set[str]:
    keys = set()
    for name, value in Experiment(name="x"):
        keys |= (
            {f"{name}.{leaf}" for leaf in type(value).model_fields}
            if isinstance(value, BaseModel)
            else {name}
        )
    return keys


# Laws


def test_the_tables_of_changes_below_cover_every_key_there_is() -> None:
    assert CHANGES.keys() | WITHOUT_INFLUENCE.keys() == all_keys()


@pytest.mark.parametrize("key", CHANGES)
def test_the_hash_depends_on_every_key_that_determines_a_result(key: str) -> None:
    assert changed(key, CHANGES[key]) != unchanged(key)
    assert config_hash(changed(key, CHANGES[key])) != config_hash(unchanged(key))


@pytest.mark.parametrize("kind", OF_OTHER_METHODS)
def test_the_hash_depends_on_every_option_of_every_method(kind: str) -> None:
    plain, options = parse(method={"kind": kind}), OF_OTHER_METHODS[kind]
    assert {"kind", *options} == set(type(plain.method).model_fields)
    others = [parse(method={"kind": kind, **WITH.get(key, {}), key: value}) for key, value in options.items()]
    assert len({config_hash(e) for e in [plain, *others]}) == 1 + len(options)
    for experiment in [plain, *others]:
        assert parse_experiment(tomllib.loads(to_toml(experiment))) == experiment


TERMS = [kind for kind in OF_OTHER_METHODS if METHODS[kind].about.needs_terms]


@pytest.mark.parametrize("kind", TERMS)
@pytest.mark.parametrize("scheme", [{"kind": "bfv"}, {"kind": "secagg"}, {"updates": "secagg"}])
def test_a_method_that_needs_terms_is_refused_under_a_scheme_that_shows_sums(kind, scheme) -> None:
    with pytest.raises(ConfigError, match=f'method.kind = "{kind}" compares clients one by one.*sums only'):
        parse(method={"kind": kind}, scheme=scheme)


def test_these_methods_need_terms() -> None:
    assert TERMS == ["fesem", "fedgroup", "stocfl", "kfed", "pacfl"]


def test_all_single_changes_have_different_hashes() -> None:
    assert len({config_hash(changed(key, value)) for key, value in CHANGES.items()}) == len(CHANGES)


@pytest.mark.parametrize("key", WITHOUT_INFLUENCE)
def test_the_hash_ignores_name_seeds_threads_and_memory(key: str) -> None:
    other = changed(key, WITHOUT_INFLUENCE[key])
    assert other != parse()
    assert config_hash(other) == config_hash(parse())


def test_the_hash_is_twelve_hex_digits_and_stays_the_same_over_releases() -> None:
    # Results on disk are found by it: a change here orphans every stored run.
    assert config_hash(parse(method={"mode": "paper"})) == "0799d55940d7"
    assert config_hash(parse()) == config_hash(parse(method={"mode": "sketch"})) == "621c1f3a0b06"


def test_the_mode_is_in_the_hash_unless_it_is_the_papers_which_was_once_the_default() -> None:
    for options in ({}, {"clusters": 3}):
        sketch, paper = (config_hash(parse(method={"mode": m, **options})) for m in MODES)
        assert sketch != paper
    # of experiments on disk, as they were hashed when "paper" was the only mode
    assert config_hash(parse(method={"mode": "paper", "clusters": 3})) == "1382862b75dd"
    assert config_hash(parse(method={"mode": "paper", "tau": 0})) == "f3c8fc8735de"
    assert config_hash(parse(method={"kind": "fedavg"})) == "f33d9111c67c"


@pytest.mark.parametrize("key", [*CHANGES, *WITHOUT_INFLUENCE])
def test_every_key_survives_the_round_trip_through_toml(key: str) -> None:
    experiment = changed(key, (CHANGES | WITHOUT_INFLUENCE)[key])
    assert parse_experiment(tomllib.loads(to_toml(experiment))) == experiment


MODES = ["sketch", "paper"]
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@st.composite
def descriptions(draw: st.DrawFn) -> dict[str, Any]:
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    kind = draw(st.sampled_from(["flameche", "fedavg", "oracle"]))
    method: dict[str, Any] = {"kind": kind}
    if kind == "flameche":
        method |= {"clusters": draw(st.integers(1, sum(sizes))), "mode": draw(st.sampled_from(MODES))}
        method |= {"unit_norm": draw(st.booleans())} if method["mode"] == "paper" else {}
    return {
        "name": draw(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True)),
        "seeds": draw(st.lists(st.integers(0, 2**63 - 1), min_size=1, unique=True)),
        "participation": draw(st.floats(0, 1, exclude_min=True)),
        "data": {
            "path": draw(texts),
            "clients": sum(sizes) + (kind == "flameche"),
            "groups": [*sizes[:-1], sizes[-1] + (kind == "flameche")],
            "transforms": draw(st.lists(texts, min_size=len(sizes), max_size=len(sizes))),
            "holdout": draw(st.floats(0, 1, exclude_max=True)),
        },
        "model": {"head": draw(texts)},
        "training": {"lr": draw(st.floats(0, exclude_min=True, allow_infinity=False))},
        "method": method,
    }


@unhurried
@given(descriptions())
def test_writing_and_reading_gives_back_the_same_experiment(description: dict[str, Any]) -> None:
    experiment = parse_experiment(description)
    again = parse_experiment(tomllib.loads(to_toml(experiment)))
    assert again == experiment
    assert hash(again) == hash(experiment)
    assert config_hash(again) == config_hash(experiment)


@unhurried
@given(descriptions())
def test_the_order_of_keys_changes_nothing(description: dict[str, Any]) -> None:
    backwards = {
        key: dict(reversed(value.items())) if isinstance(value, dict) else value
        for key, value in reversed(description.items())
    }
    assert config_hash(parse_experiment(backwards)) == config_hash(parse_experiment(description))
    assert to_toml(parse_experiment(backwards)) == to_toml(parse_experiment(description))


@unhurried
@given(st.floats(0, 1, exclude_min=True), st.integers(5, 1000))
def test_a_round_has_at_least_one_and_at_most_all_clients(participation: float, clients: int) -> None:
    assert 1 <= parse(participation=participation, data={"clients": clients}).participants <= clients


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@unhurried
@given(st.sampled_from([*CHANGES, *WITHOUT_INFLUENCE]), json_like)
def test_any_value_is_taken_or_refused_in_one_line_that_names_its_key(key: str, value: Any) -> None:
    message = ""
    try:
        changed(key, value)
    except ConfigError as error:
        message = str(error)
    assert not message or (len(message.splitlines()) == 1 and key in message)


# Reading


def test_an_empty_description_but_for_its_name_is_flameche_on_digits() -> None:
    experiment = parse()
    assert experiment.data.dataset == "digits"
    assert experiment.method == FlamecheOptions(clusters=4, mode="sketch")
    assert experiment.seeds == (0,)
    assert experiment.participants == 20


def test_a_method_table_without_a_kind_is_flameche() -> None:
    assert parse(method={"clusters": 3}).method == FlamecheOptions(clusters=3)


def test_a_path_takes_the_place_of_the_default_dataset() -> None:
    data = parse(data={"path": "a.npz"}).data
    assert (data.dataset, data.path) == (None, "a.npz")


def test_participants_are_rounded_but_never_none() -> None:
    assert parse(participation=0.001).participants == 1
    assert parse(participation=0.125, data={"clients": 20}).participants == 2  # 2.5, to the even neighbour
    assert parse(participation=1).participants == 100


def test_groups_are_counted_whichever_way_they_are_written() -> None:
    assert parse(data={"groups": 5}).data.group_count == 5
    assert parse(data={"groups": [30, 70]}).data.group_count == 2


def test_experiments_cannot_be_changed_and_can_be_hashed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        parse().rounds = 3
    assert len({parse(), parse(), parse(rounds=3)}) == 2


OWN = {"path": "scans.npz", "clients": 6}


@pytest.mark.parametrize(
    ("data", "heterogeneity", "groups"),
    [
        (OWN, "none", 1),
        ({**OWN, "heterogeneity": "none"}, "none", 1),
        ({**OWN, "heterogeneity": "none", "groups": 2}, "none", 2),
        ({**OWN, "heterogeneity": "csl"}, "csl", 4),
        ({**OWN, "transforms": ["none", "invert"]}, "csl", 2),
        ({**OWN, "groups": [4, 2], "transforms": ["none", "invert"]}, "csl", (4, 2)),
        ({**OWN, "groups": 2, "missing_by": "group", "missing_labels": 1}, "none", 2),
        ({}, "csl", 4),
        ({"dataset": "mnist"}, "csl", 4),
        ({"dataset": "mnist", "heterogeneity": "none"}, "none", 4),
    ],
)
def test_own_data_are_taken_as_they_are_and_the_papers_as_in_the_paper(data, heterogeneity, groups) -> None:
    found = parse_experiment({"name": "x", "data": data}).data
    assert (found.heterogeneity, found.groups) == (heterogeneity, groups)
    assert (
        parse_experiment(tomllib.loads(to_toml(parse_experiment({"name": "x", "data": data})))).data == found
    )


def test_groups_of_own_data_must_differ_in_something() -> None:
    with pytest.raises(
        ConfigError, match=r"data\.groups = 3 with data\.path does not say how.*data\.transforms"
    ):
        parse_experiment({"name": "x", "data": {**OWN, "groups": 3}})


def test_own_data_with_transforms_keep_the_hash_of_their_runs() -> None:
    own = {"name": "x", "data": {**OWN, "groups": 2, "transforms": ["none", "invert"]}}
    own["method"] = {"mode": "paper"}
    # as before own data had defaults of their own
    assert config_hash(parse_experiment(own)) == "469d457857ba"


def test_parsing_leaves_its_input_as_it_was() -> None:
    given_ = {"name": "x", "data": {"groups": [50, 50], "dataset": "mnist"}, "method": {"tau": 3}}
    before = copy.deepcopy(given_)
    parse_experiment(given_, ["method.kind=oracle", "data.path=a.npz", "data.groups=1", "training.lr=1"])
    assert given_ == before


def test_a_file_lends_its_stem_as_name_unless_it_has_one(tmp_path: Path) -> None:
    file = tmp_path / "mnist-csl.toml"
    file.write_text("rounds = 3\n")
    assert load_experiment(file) == parse_experiment({"name": "mnist-csl", "rounds": 3})
    assert load_experiment(file, ["name=other"]).name == "other"
    file.write_text('name = "given"\n')
    assert load_experiment(file).name == "given"


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(b"\xef\xbb\xbfrounds = 3\n")
    assert load_experiment(file).rounds == 3


def load_refusal(file: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_experiment(file)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    assert load_refusal(file) == f"{file}: no such file; expected an experiment in TOML"


def test_a_folder_is_no_experiment(tmp_path: Path) -> None:
    assert load_refusal(tmp_path).startswith(f"{tmp_path}: cannot be read: ")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"rounds = 3\nseeds = [1,,2]\n", "line 2"),
        (b"rounds 3\n", "line 1"),
        (b"a = 1\na = 2\n", "line 2"),
        (b"rounds = 3\nseeds = [1,\n", "line 2, the end of the file"),
    ],
)
def test_a_syntax_error_is_told_with_its_line(tmp_path: Path, content: bytes, line: str) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(content)
    message = load_refusal(file)
    assert message.startswith(f"{file}: not TOML: ")
    assert line in message


@pytest.mark.parametrize("content", [b"\xff\xfe", b"rounds = " + b"9" * 5000, b"a = " + b"[" * 9000])
def test_what_is_not_text_or_beyond_measure_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(content)
    assert load_refusal(file).startswith(f"{file}: not TOML: ")


def test_a_wrong_value_in_a_file_is_told_with_the_files_name(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[training]\nlr = -1\n")
    assert load_refusal(file) == f"{file}: training.lr = -1: must be greater than 0"


# Refusals


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"training": {"epoch": 1}}, "unknown key 'training.epoch'; did you mean 'training.epochs'?"),
        ({"seed": 1}, "unknown key 'seed'; did you mean 'seeds'?"),
        ({"lr": 1}, "unknown key 'lr'; did you mean 'training.lr'?"),
        ({"clients": 1}, "unknown key 'clients'; did you mean 'data.clients'?"),
        ({"model": {"zzz": 1}}, "unknown key 'model.zzz'; known are model.kind, model.head"),
        ({"kind": "x"}, "unknown key 'kind'; known are name, seeds, rounds, participation, data, partition, "
                        "model, training, metadata, method, scheme, privacy, events, callbacks"),
        ({"model": {"zzz": 1, "hed": 2}},
         "unknown key 'model.zzz'; known are model.kind, model.head (and 1 more)"),
        ({"a\nb": 1}, "unknown key 'a\\nb'; known are name, seeds, rounds, participation, data, partition, "
                      "model, training, metadata, method, scheme, privacy, events, callbacks"),
        ({"method": {"kind": "fedavg", "tau": 3}},
         "unknown key 'method.tau' for method.kind = \"fedavg\"; it belongs to kind flameche"),
    ],
)  # fmt: skip
def test_an_unknown_key_is_met_with_the_nearest_known_one(tables: dict[str, Any], message: str) -> None:
    assert refusal(**tables) == message


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"training": {"lr": -1}}, "training.lr = -1: must be greater than 0"),
        ({"training": {"lr": float("nan")}}, "training.lr = nan: must be a finite number"),
        ({"training": {"lr": "fast"}}, 'training.lr = "fast": must be a number'),
        ({"training": {"epochs": 2.0}}, "training.epochs = 2.0: must be a whole number"),
        ({"training": {"epochs": True}}, "training.epochs = true: must be a whole number"),
        ({"training": {"augment": 1}}, "training.augment = 1: must be true or false"),
        (
            {"training": {"momentum": 0.5}},
            'training.momentum = 0.5 needs training.optimiser = "sgd"; Adam has its own',
        ),
        (
            {"training": {"optimiser": "sgd"}, "method": {"kind": "stocfl", "first": "adam"}},
            'method.first = "adam" is the Adam of all training, training.optimiser = "sgd" has none; '
            'take first = "sgd"',
        ),
        (
            {"method": {"kind": "fesem", "start": "shared", "newcomers": "first"}},
            'method.newcomers = "first" needs method.start = "kmeans"',
        ),
        (
            {"data": {"missing_by": "group"}},
            'data.missing_by = "group" needs data.missing_labels; no label is missing',
        ),
        ({"training": {"turn": 20}}, "training.turn = 20 needs training.augment = true"),
        (
            {
                "training": {"bn_buffers": "member"},
                "method": {"kind": "flameche-soft", "training": "weighted"},
            },
            'training.bn_buffers = "member": not with method.training = "weighted"; take "mean"',
        ),
        (
            {
                "training": {"absent": "stay"},
                "method": {"kind": "flameche-soft", "training": "weighted"},
            },
            'training.absent = "stay": not with method.training = "weighted"; take "out"',
        ),
        (
            {
                "training": {"absent": "stay"},
                "method": {"hide_assignments": True, "mode": "paper"},
                "scheme": {"kind": "bfv", "updates": "ckks"},
            },
            'training.absent = "stay": method.hide_assignments hides who is a member; take "out"',
        ),
        (
            {"training": {"absent": "stay", "weighting": "samples"}},
            'training.absent = "stay": not with training.weighting = "samples", for absent members count by '
            'heads; take "out"',
        ),
        (
            {
                "training": {"absent": "stay"},
                "method": {"kind": "fedavg"},
                "events": [{"kind": "leave", "round": 2, "clients": [0]}],
            },
            'training.absent = "stay": method.kind = "fedavg" does not hear of clients that join or leave; '
            'take "out"',
        ),
        ({"training": {"epochs": 0, "lr": 0, "batch": 0}},
         "training.epochs = 0: must be greater than or equal to 1 (and 2 more)"),
        ({"method": {"clusters": 0}}, "method.clusters = 0: must be greater than or equal to 1"),
        ({"method": {"clusters": "some"}},
         'method.clusters = "some": must be a number of clusters or "auto"'),
        ({"method": {"kind": "fedavgg"}},
         f'method.kind = "fedavgg": must be one of {KINDS}; did you mean \'fedavg\'?'),
        ({"method": {"kind": [1]}}, "method.kind = [1]: must be text"),
        ({"method": 5}, "method = 5: must be a table"),
        ({"data": []}, "data = []: must be a table"),
        ({"data": {"dataset": "MINST"}},
         'data.dataset = "MINST": must be one of digits, mnist, fashion-mnist, cifar10, pathmnist, '
         "tissuemnist, mednist28, or 'package.module:function'; did you mean 'mnist'?"),
        ({"data": {"zoom": "q"}}, 'data.zoom = "q": must be one of crop, resize'),
        ({"scheme": {"kind": "rsa"}},
         'scheme.kind = "rsa": must be one of plain, secagg, paillier, bfv, ckks, ckks-paper, '
         "or 'package.module:NAME'"),
        ({"data": {"path": ""}}, 'data.path = "": must not be empty'),
        ({"data": {"groups": "4"}},
         'data.groups = "4": must be the number of groups or the list of their sizes'),
        ({"data": {"groups": [100, 0]}}, "data.groups[1] = 0: must be greater than or equal to 1"),
        ({"data": {"groups": []}}, "data.groups = []: must not be empty"),
        ({"data": {"transforms": "rotate:0"}}, 'data.transforms = "rotate:0": must be a list'),
        ({"seeds": []}, "seeds = []: must not be empty"),
        ({"seeds": [4, 4]}, "seeds = [4, 4]: must be distinct"),
        ({"seeds": [4, -1]}, "seeds[1] = -1: must be greater than or equal to 0"),
        ({"model": {"kind": "lenet"}},
         'model.kind = "lenet": must be one of auto, lenet5, resnet18, resnet18-small, '
         'resnet18-unpooled, small-cnn, '
         "or 'package.module:factory'; did you mean 'lenet5'?"),
        ({"model": {"head": "a" * 200, "kind": 3}}, "model.kind = 3: must be text"),
        ({"rounds": "a" * 200}, f'rounds = "{"a" * 78}…: must be a whole number'),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_with_its_key_and_what_was_expected(
    tables: dict[str, Any], message: str
) -> None:
    assert refusal(**tables) == message


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"data": {"clients": 20}, "method": {"clusters": 20}},
         "method.clusters = 20 must be below data.clients = 20; "
         "a cluster per client leaves nothing to share"),
        ({"data": {"clients": 5, "groups": 6}},
         "data.groups = 6 must not exceed data.clients = 5; every group needs a client"),
        ({"data": {"clients": 11, "groups": [5, 5]}},
         "data.groups = [5, 5] sums to 10, but data.clients = 11; the sizes must add up to the clients"),
        ({"data": {"groups": 4, "transforms": ["rotate:0", "rotate:90"]}},
         "data.transforms has 2 entries for 4 groups; give one per group"),
        ({"data": {"dataset": "mnist", "path": "a.npz"}},
         'data.dataset = "mnist" and data.path exclude each other; give one'),
    ],
)  # fmt: skip
def test_keys_that_contradict_each_other_are_both_named(tables: dict[str, Any], message: str) -> None:
    assert refusal(**tables) == message


def of_the_paper(key: str) -> str:
    return f'method.{key} belongs to method.mode = "paper"; the mode is "sketch"'


@pytest.mark.parametrize("key", FlamecheOptions.PAPER_ONLY)
def test_the_papers_own_keys_are_refused_in_other_modes_but_for_their_defaults(key: str) -> None:
    for mode in ({}, {"mode": "sketch"}):
        assert refusal(method={**mode, key: CHANGES[f"method.{key}"]}) == of_the_paper(key)
    default = FlamecheOptions.model_fields[key].default
    assert parse(method={key: default}) == parse()


def test_every_option_but_the_clusters_is_the_papers_own() -> None:
    others = {"kind", "mode", "clusters", "most_clusters"}
    assert {*others, *FlamecheOptions.PAPER_ONLY} == set(FlamecheOptions.model_fields)


def test_the_mode_that_is_gone_names_what_took_its_place() -> None:
    assert refusal(method={"mode": "robust"}) == (
        'method.mode = "robust" is no longer there; "sketch", the default, took its place: the same clusters '
        "from far fewer sums"
    )


def test_a_mode_that_does_not_exist_is_met_with_those_that_do() -> None:
    assert refusal(method={"mode": "papers"}) == (
        "method.mode = \"papers\": must be one of sketch, paper; did you mean 'paper'?"
    )


def test_a_contradiction_is_a_config_error_in_the_library_too() -> None:
    with pytest.raises(ConfigError, match="must not exceed"):
        DataConfig(groups=6, clients=5)
    with pytest.raises(ConfigError, match="must be below"):
        Experiment(name="x", method=FlamecheOptions(clusters=100))


def test_a_description_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^config: name is missing$"):
        parse_experiment({})


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "-rf", "a/b", "a b", "a\n", "é", "a" * 101])
def test_a_name_that_makes_no_safe_folder_is_refused(name: str) -> None:
    assert "must be up to 100 letters" in refusal(name=name)


@pytest.mark.parametrize("name", ["a", "7", "_", "mnist-csl_v1.2", "a" * 100])
def test_a_name_that_makes_a_folder_is_taken(name: str) -> None:
    assert parse(name=name).name == name


@pytest.mark.parametrize("kind", ["a:", ":b", "a:b:c", "a b:c", "a..b:c", "1a:b", "a", "", "lenet5 "])
def test_a_model_that_is_neither_known_nor_a_factory_is_refused(kind: str) -> None:
    assert "'package.module:factory'" in refusal(model={"kind": kind})


@pytest.mark.parametrize("kind", [*MODELS, "a:b", "a.b_c.d1:Net"])
def test_a_model_that_is_known_or_a_factory_is_taken(kind: str) -> None:
    assert parse(model={"kind": kind}).model.kind == kind


def test_the_ends_of_each_range_are_taken_and_their_neighbours_refused() -> None:
    assert parse(participation=1, data={"holdout": 0}).data.holdout == 0
    for bad in (0, 1.0000001, -0.1):
        assert "participation" in refusal(participation=bad)
    for bad in (1, -0.1):
        assert "data.holdout" in refusal(data={"holdout": bad})
    assert parse(data={"clients": 5, "groups": 5}).data.groups == 5
    assert parse(data={"clients": 5, "groups": 1}, method={"clusters": 4}).method == FlamecheOptions(
        clusters=4
    )
    assert parse(data={"clients": 1, "groups": 1}, method={"kind": "fedavg"}).participants == 1
    assert parse(seeds=[2**63 - 1]).seeds == (2**63 - 1,)
    assert "seeds[0]" in refusal(seeds=[2**63])


# Overrides


def test_overrides_are_read_as_toml_values_and_otherwise_as_text() -> None:
    experiment = parse(
        "training.lr=1e-2",
        "data.groups=[5, 5]",
        "data.clients = 10",
        "training.augment=true",
        "model.kind=resnet18",
        'model.head="fc"',
        "data.transforms=['rotate:0', \"a=b\"]",
        "name=a.b",
    )
    assert experiment == parse_experiment(
        {
            "name": "a.b",
            "training": {"lr": 0.01, "augment": True},
            "data": {"groups": [5, 5], "clients": 10, "transforms": ["rotate:0", "a=b"]},
            "model": {"kind": "resnet18", "head": "fc"},
        }
    )


def test_an_override_beats_the_file_and_the_last_override_beats_all() -> None:
    assert parse("rounds=2", "rounds=3", rounds=1).rounds == 3


def test_an_inline_table_is_merged_key_by_key() -> None:
    training = parse("training={lr = 0.5, batch = 3}", training={"epochs": 2, "batch": 9}).training
    assert (training.epochs, training.batch, training.lr) == (2, 3, 0.5)


def test_another_method_drops_the_files_keys_that_it_does_not_know() -> None:
    method = {"kind": "flameche", "mode": "paper", "clusters": 3, "tau": 5}
    assert parse("method.kind=oracle", method=method).method == OracleOptions()
    assert parse("method.kind=fedavg", method={"clusters": 3}).method == FedAvgOptions()
    assert parse("method={kind='fedavg'}", method=method).method == FedAvgOptions()


def test_the_same_method_keeps_the_files_keys() -> None:
    method = {"kind": "flameche", "mode": "paper", "tau": 5}
    assert parse("method.kind=flameche", method=method).method == FlamecheOptions(mode="paper", tau=5)
    assert "method.tau" in refusal("method.kind=oracle", method={"kind": "oracle", "tau": 5})


def test_an_override_of_a_papers_key_needs_the_papers_mode_from_the_file_or_another_override() -> None:
    paper = FlamecheOptions(mode="paper", tau=0)
    assert parse("method.tau=0", method={"mode": "paper", "tau": 5}).method == paper
    assert parse("method.tau=0", "method.mode=paper").method == paper
    assert parse("method.mode=paper", method={"tau": 0}).method == paper
    assert refusal("method.tau=0") == of_the_paper("tau")


def test_another_metadata_kind_keeps_the_keys_that_it_shares() -> None:
    metadata = parse("metadata.kind=mean", metadata={"kind": "subspace", "components": 3}).metadata
    assert (metadata.kind, metadata.components) == ("mean", 3)


@pytest.mark.parametrize(
    "sets", [["method.kind=oracle", "method.tau=3"], ["method.tau=3", "method.kind=oracle"]]
)
def test_keys_given_by_overrides_are_never_dropped(sets: list[str]) -> None:
    message = "unknown key 'method.tau' for method.kind = \"oracle\"; it belongs to kind flameche"
    assert refusal(*sets, method={"tau": 5, "clusters": 3}) == message


def test_a_misspelt_key_in_the_file_is_not_hidden_by_another_method() -> None:
    assert "unknown key 'method.clutsers'" in refusal("method.kind=oracle", method={"clutsers": 3})


def test_an_unknown_kind_in_an_override_is_told_as_such() -> None:
    assert refusal("method.kind=orakle", method={"tau": 5}).startswith(
        'method.kind = "orakle": must be one of'
    )


def test_a_dataset_in_an_override_replaces_the_files_path_and_the_reverse() -> None:
    assert parse("data.dataset=mnist", data={"path": "a.npz"}).data == DataConfig(dataset="mnist")
    assert parse("data.path=a.npz", data={"dataset": "mnist"}).data == DataConfig(path="a.npz")
    assert "exclude each other" in refusal("data.path=a.npz", "data.dataset=mnist")


@pytest.mark.parametrize(
    "text", ["", "rounds", "rounds=", "=3", "a..b=3", ".rounds=3", "ro unds=3", "rounds= "]
)
def test_a_malformed_override_is_refused_with_an_example(text: str) -> None:
    assert (
        refusal(text)
        == f"override {text!r}: expected key=value, as in training.lr=1e-3 or method.kind=fedavg"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training.epoch=3", "unknown key 'training.epoch'; did you mean 'training.epochs'?"),
        ("trainign.epochs=3", "unknown key 'trainign'; did you mean 'training'?"),
        ("training=3", "training = 3: must be a table"),
        ("rounds.x=3", "rounds = {x = 3}: must be a whole number"),
        ("rounds=ten", 'rounds = "ten": must be a whole number'),
        ("training.augment=True", 'training.augment = "True": must be true or false'),
        ("rounds=1\nname=2", 'rounds = "1\\nname=2": must be a whole number'),
        ("rounds=2024-01-01", "rounds = 2024-01-01: must be a whole number"),
    ],
)
def test_an_override_is_refused_as_the_file_would_be(text: str, message: str) -> None:
    assert refusal(text) == message


@unhurried
@given(st.text())
def test_any_override_is_taken_or_refused_in_one_line(text: str) -> None:
    for override in (text, f"name={text}", f"training.lr={text}"):
        message = ""
        try:
            parse(override)
        except ConfigError as error:
            message = str(error)
        assert len(message.splitlines()) <= 1


# Architecture


@pytest.mark.parametrize("module", [events, overrides, error_messages])
def test_the_wording_of_errors_needs_no_torch(module: Any) -> None:
    tree = ast.walk(ast.parse(Path(module.__file__).read_text()))
    imported = {node.module or "" for node in tree if isinstance(node, ast.ImportFrom)}
    ours = {name for name in imported if name.split(".")[0] in {"flameche", "torch", "numpy"}}
    siblings = {f"flameche.experiments.{name}" for name in ("events", "overrides", "error_messages")}
    assert ours <= {"flameche.errors", "flameche.tables", *siblings}
