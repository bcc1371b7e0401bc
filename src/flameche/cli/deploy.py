"""`flameche deploy`: writes apps, certificates and node keys, runs a node, tries a deployment locally."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from flameche.cli.errors import exit_on_interrupt
from flameche.cli.options import JsonOption, Overrides
from flameche.cli.output import log, number, out_console, print_json
from flameche.errors import BadInput

app = typer.Typer(help="FLAMECHE on a real network, with Flower.", no_args_is_help=True)
Superlink = Annotated[str, typer.Option("--superlink", help="The SuperLink's address.", metavar="HOST:PORT")]


@app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(help="Where the app goes.", metavar="DIR")],
    nodes: Annotated[int, typer.Option("--nodes", help="How many sites there are.", min=2)] = 6,
    scheme: Annotated[str, typer.Option("--scheme", help="bfv, ckks, paillier, secagg or plain.")] = "bfv",
    classes: Annotated[
        str, typer.Option("--classes", help="How many classes all sites have together, or their names.")
    ] = "",
) -> None:
    """Write a Flower app for your own data and model."""
    from flameche.flower.app_template import write_app

    for file in write_app(folder, nodes, scheme, classes=classes):
        out_console.print(str(file), soft_wrap=True)


@app.command("local")
def local(
    app_folder: Annotated[
        Path | None,
        typer.Option("--app", help="An app's folder; by default an app on digits.", metavar="DIR"),
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", help="How many nodes.", min=2, max=60)] = 6,
    rounds: Annotated[int | None, typer.Option("--rounds", help="How many rounds.", min=1)] = None,
    scheme: Annotated[str | None, typer.Option("--scheme", help="How metadata are encrypted.")] = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Use certificates, and nodes with keys of their own.")
    ] = False,
    simulated: Annotated[
        bool,
        typer.Option(
            "--simulated", help="Divide the experiment's dataset among the nodes, whatever the app says."
        ),
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
    """Run an app on this machine, with a SuperLink and nodes that are stopped at the end in any case."""
    _need_flwr()
    from flameche.flower.app_template import write_digits_app
    from flameche.flower.deployment import LocalRun, run_locally

    # The embedded digits are too few for more than 16 nodes with the default number of images each.
    fewer_images = ["data.per_label=2"] if app_folder is None and nodes > 16 else []
    changes = [*fewer_images, *(overrides or [])]
    changes += [f"rounds={rounds}"] if rounds is not None else []
    changes += [f"scheme.kind={scheme}"] if scheme is not None else []
    where = app_folder if app_folder is not None else write_digits_app(folder / "app")
    settings = (("data", "simulated"),) if simulated else ()
    plan = LocalRun(where, folder, out, nodes, seed, tls, tuple(changes), settings, data)
    with exit_on_interrupt("the same command continues from the last checkpoint"):
        summary, run = run_locally(plan, _print_line)
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
    """Make TLS certificates for a SuperLink that has none from a public authority."""
    from flameche.flower.certificates import make_certificates

    made = make_certificates(folder, host, days)
    out_console.print(f"{made.ca}  for every node, and for whoever runs `flwr`", soft_wrap=True)
    out_console.print(f"{made.certificate}  for the SuperLink", soft_wrap=True)
    out_console.print(f"{made.key}  for the SuperLink; mode 0600", soft_wrap=True)


@app.command("identity")
def identity(
    folder: Annotated[Path, typer.Argument(help="Where node.key and node.key.pub go.", metavar="DIR")],
) -> None:
    """Make the key with which a node proves its identity."""
    from flameche.flower.certificates import make_node_key

    secret, public = make_node_key(folder, "node.key")
    out_console.print(f"{secret}  stays at the site; mode 0600", soft_wrap=True)
    out_console.print(f"{public}  for the operator: flwr supernode register", soft_wrap=True)


@app.command("agree")
def agree(
    app_folder: Annotated[Path, typer.Argument(help="An app's folder.", metavar="DIR")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="The overrides that the operator will use.", metavar="KEY=VALUE"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the hashes of an app and of its run, by which a site can check what its node runs."""
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
    key: Annotated[Path | None, typer.Option("--key", help="The clients' secret key, client.key.")] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="The site's data: an npz, or a folder of images.")
    ] = None,
    trust: Annotated[
        Path | None,
        typer.Option("--root-certificates", help="The certificate of the SuperLink's authority, ca.pem."),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Connect without TLS.")] = False,
    own_identity: Annotated[
        Path | None, typer.Option("--identity", help="The node's own key, node.key.")
    ] = None,
    app_folder: Annotated[
        Path | None, typer.Option("--app", help="Run only this app, of which the site has a copy.")
    ] = None,
    run: Annotated[
        str, typer.Option("--run", help="Take part only in the run with this hash (see `deploy agree`).")
    ] = "",
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda; by default the app's.")] = "",
) -> None:
    """Run a site's node: a Flower SuperNode that starts programs quickly and runs only the agreed app."""
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
    try:
        code = SiteNode(superlink, folder, settings, trust, own_identity, app_folder, _print_line).run()
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code)


def _print_line(line: str) -> None:
    log.print(line, soft_wrap=True, markup=False)


def _need_flwr() -> None:
    if find_spec("flwr") is None:
        raise BadInput("needs flwr: pip install 'flameche[flower]'")
