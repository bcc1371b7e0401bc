"""`flameche keys`: makes key files, and shows what is public about one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from flameche.cli.options import JsonOption
from flameche.cli.output import out_console, print_json

app = typer.Typer(help="Keys for encrypted runs.", no_args_is_help=True)


@app.command("new")
def new_keys(
    folder: Annotated[Path, typer.Argument(help="Where client.key and server.pub go.", metavar="DIR")],
    scheme: Annotated[str, typer.Option("--scheme", help="bfv, ckks, ckks-paper or paillier.")] = "bfv",
    clients: Annotated[
        int, typer.Option("--clients", help="The largest number of terms in a sum.", min=1)
    ] = 100,
    bound: Annotated[float, typer.Option("--bound", help="The largest magnitude of a value.")] = 64.0,
    key_bits: Annotated[int, typer.Option("--key-bits", help="Paillier: 3072 or 2048.")] = 3072,
    as_json: JsonOption = False,
) -> None:
    """Make a key: a secret file for the clients (mode 0600), and its public part for the server."""
    from flameche.crypto.keyfile import PUBLIC, SECRET, read_info, write_public, write_secret
    from flameche.crypto.registry import keyed_schemes, make_scheme
    from flameche.errors import BadInput, FlamecheError
    from flameche.registry import SCHEMES

    if scheme not in keyed_schemes():
        why = "has no keys" if scheme in SCHEMES else "is not known"
        raise BadInput(f"--scheme {scheme} {why}; keys can be made for {', '.join(keyed_schemes())}")
    if key_bits not in (2048, 3072):
        raise BadInput(f"--key-bits {key_bits}: Paillier's keys have 3072 or 2048 bits")
    bits = {"key_bits": key_bits} if scheme == "paillier" else {}
    made = make_scheme(scheme, clients=clients, bound=bound, **bits)
    secret, public = folder / SECRET, folder / PUBLIC
    if public.exists():  # a new client.key beside another key's server.pub would mislead
        raise BadInput(f"{public} exists; a key is never replaced, remove it first")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise BadInput(f"{folder} cannot be made: {problem.strerror}") from problem
    write_secret(secret, made)
    try:
        write_public(public, made)
    except FlamecheError:
        secret.unlink()
        raise
    if as_json:
        print_json({"client": str(secret), "server": str(public), **_public_facts(read_info(public))})
        return
    out_console.print(f"{secret}  for every client, over a safe channel; mode 0600", soft_wrap=True)
    out_console.print(f"{public}  for the server", soft_wrap=True)


@app.command("show")
def show_key(
    file: Annotated[Path, typer.Argument(help="A client.key or server.pub.", metavar="FILE")],
    as_json: JsonOption = False,
) -> None:
    """Show what is public about a key: scheme, clients, bound, size, fingerprint."""
    from flameche.crypto.keyfile import read_info

    info = read_info(file)
    part = "secret" if info.secret else "public"
    if as_json:
        print_json({"file": str(file), "part": part, **_public_facts(info)})
        return
    holder = "every client's" if info.secret else "the server's"
    out_console.print(f"{file}: the {part} part of a {info.scheme} key, {holder}", soft_wrap=True)
    out_console.print(
        f"for sums of up to {info.clients} clients, values up to {info.bound:g}; {info.parameters}",
        soft_wrap=True,
    )
    out_console.print(f"fingerprint {info.fingerprint}", soft_wrap=True)


def _public_facts(info: Any) -> dict[str, Any]:
    return {key: value for key, value in asdict(info).items() if key not in ("secret", "bits")}
