"""`flameche deploy`: writes apps, certificates, keys of nodes; runs a node; plays a deployment here."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from flameche.display import log, number, out_console, print_json
from flameche.errors import BadInput
from flameche.options import JsonOption, Overrides

app = typer.Typer(help="FLAMECHE on a real network, with Flower.", no_args_is_help=True)
Superlink = Annotated[str, typer.Option("--superlink", help="HOST:PORT.", metavar="HOST:PORT")]


@app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(help="Where the app goes.", metavar="DIR")],
    nodes: Annotated[int, typer.Option("--nodes", help="How many sites there are.", min=2)] = 6,
    scheme: Annotated[str, typer.Option("--scheme", help="bfv, ckks, paillier, secagg or plain.")] = "bfv",
    classes: Annotated[
        str, typer.Option("--classes", help="How many there are at all sites together, or their names.")
    ] = "",
) -> None:
    """Write a Flower app for your own data and model."""
    from flameche.flower.app_template import write_app

    for file in write_app(folder, nodes, scheme, classes=classes):
        out_console.print(str(file), soft_wrap=True)


@app.command("local")
def local(
    app_folder: Annotated[
        Path | None, typer.Option("--app", help="An app; else digits.", metavar="DIR")
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", help="How many nodes.", min=2, max=60)] = 6,
    rounds: Annotated[int | None, typer.Option("--rounds", help="How many rounds.", min=1)] = None,
    scheme: Annotated[str | None, typer.Option("--scheme", help="How metadata are sealed.")] = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Certificates, and nodes that prove who they are.")
    ] = False,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Deal the experiment's dataset, whatever the app says.")
    ] = False,
    overrides: Overrides = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="A folder with 0.npz, 1.npz, … or folders 0, 1, …"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    out: Annotated[Path, typer.Option("--out", help="Where run folders go.")] = Path("runs/network"),
    folder: Annotated[Path, typer.Option("--folder", help="Where keys and the sites' folders go.")] = Path(
        "deployment"
    ),
    as_json: JsonOption = False,
) -> None:
    """Play an app here: a SuperLink and nodes on this machine, ended again whatever happens."""
    _need_flwr()
    from flameche.flower.app_template import write_digits_app
    from flameche.flower.deployment import LocalRun, run_locally

    few = ["data.per_label=2"] if app_folder is None and nodes > 16 else []  # there are not that many digits
    changes = [*few, *(overrides or [])]
    changes += [f"rounds={rounds}"] if rounds is not None else []
    changes += [f"scheme.kind={scheme}"] if scheme is not None else []
    where = app_folder if app_folder is not None else write_digits_app(folder / "app")
    settings = (("data", "simulated"),) if simulated else ()
    plan = LocalRun(where, folder, out, nodes, seed, tls, tuple(changes), settings, data)
    try:
        summary, run = run_locally(plan, lambda line: log.print(line, soft_wrap=True, markup=False))
    except KeyboardInterrupt:
        log.print("flameche: stopped; the same command continues from the last checkpoint")
        raise typer.Exit(130) from None
    if as_json:
        print_json({**summary, "folder": str(run)})
        return
    accuracy = number(summary["accuracy"] and 100 * summary["accuracy"], ".1f")
    used = len(set(summary["assignment"]) - {-1})
    clusters = f"{used}" if used == summary["k"] else f"{used} of {summary['k']}"
    out_console.print(
        f"{clusters} clusters · accuracy {accuracy}% · {summary['bytes_up'] / 1e6:.1f} MB up, "
        f"{summary['bytes_down'] / 1e6:.1f} down · {run}",
        soft_wrap=True,
    )


@app.command("certificates")
def certificates(
    folder: Annotated[Path, typer.Argument(help="Where the files go.", metavar="DIR")],
    host: Annotated[list[str], typer.Option("--host", help="A name or address of the SuperLink; repeat it.")],
    days: Annotated[int, typer.Option("--days", help="How long they are valid.", min=1, max=3650)] = 825,
) -> None:
    """Make certificates for a SuperLink that no public authority knows."""
    from flameche.flower.certificates import make_certificates

    made = make_certificates(folder, host, days)
    out_console.print(f"{made.ca}  for every node, and for who runs `flwr`", soft_wrap=True)
    out_console.print(f"{made.certificate}  for the SuperLink", soft_wrap=True)
    out_console.print(f"{made.key}  for the SuperLink; mode 0600", soft_wrap=True)


@app.command("identity")
def identity(
    folder: Annotated[Path, typer.Argument(help="Where node.key and node.key.pub go.", metavar="DIR")],
) -> None:
    """Make the key by which a node proves who it is."""
    from flameche.flower.certificates import make_node_key

    secret, public = make_node_key(folder, "node.key")
    out_console.print(f"{secret}  stays at the site; mode 0600", soft_wrap=True)
    out_console.print(f"{public}  for the operator: flwr supernode register", soft_wrap=True)


@app.command("agree")
def agree(
    app_folder: Annotated[Path, typer.Argument(help="An app's folder.", metavar="DIR")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="As the operator will say.", metavar="KEY=VALUE")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show by what an app and its run are known, so that sites can hold on to them."""
    _need_flwr()
    from flameche.flower.app_allowlist import app_hash
    from flameche.flower.deployment import run_id_of_app

    found = {"app": app_hash(app_folder), "run": run_id_of_app(app_folder, overrides or [])}
    if as_json:
        print_json(found)
        return
    out_console.print(f"app {found['app']}\nrun {found['run']}", soft_wrap=True)


@app.command("node")
def node(
    superlink: Superlink,
    number_of_node: Annotated[int, typer.Option("--number", help="This site's number, from 0.", min=0)],
    folder: Annotated[Path, typer.Option("--folder", help="Where the node keeps its state.")],
    key: Annotated[Path | None, typer.Option("--key", help="client.key.")] = None,
    data: Annotated[Path | None, typer.Option("--data", help="An npz, or a folder of images.")] = None,
    trust: Annotated[Path | None, typer.Option("--root-certificates", help="ca.pem.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS.")] = False,
    own_identity: Annotated[Path | None, typer.Option("--identity", help="node.key.")] = None,
    app_folder: Annotated[
        Path | None, typer.Option("--app", help="Run this app alone, of which the site has a copy.")
    ] = None,
    run: Annotated[str, typer.Option("--run", help="Take part in this run alone (deploy agree).")] = "",
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda; else the app's.")] = "",
) -> None:
    """Run a site's node: Flower's SuperNode, kept warm, and held to what the site agreed to."""
    _need_flwr()
    from flameche.crypto.keyfile import read_secret
    from flameche.flower.deployment import SiteNode

    if insecure == (trust is not None):
        raise BadInput("give --root-certificates ca.pem, or --insecure on a network that you trust")
    host, _, port = superlink.rpartition(":")
    if not host or not port.isdigit():
        raise BadInput(f"--superlink {superlink}: expected HOST:PORT")
    if device not in ("", "auto", "cpu", "cuda"):
        raise BadInput(f"--device {device}: expected auto, cpu or cuda")
    settings: dict[str, Any] = {"partition-id": number_of_node, "run": run, "device": device}
    for name, path in (("key", key), ("data", data)):
        if path is not None:
            if not path.exists():
                raise BadInput(f"--{name} {path}: no such file")
            settings[name] = str(path.resolve())
    if key is not None:
        read_secret(key)
    say = lambda line: log.print(line, soft_wrap=True, markup=False)  # noqa: E731
    try:
        code = SiteNode(superlink, folder, settings, trust, own_identity, app_folder, say).run()
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code)


def _need_flwr() -> None:
    if find_spec("flwr") is None:
        raise BadInput("needs flwr: pip install 'flameche[flower]'")
