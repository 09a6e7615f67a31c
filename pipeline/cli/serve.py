"""``pte serve``: the artifact behind OpenAI's HTTP interface on this machine, for trying it from an app.

It answers /v1/models, /v1/chat/completions and /v1/completions, streamed or whole, until Ctrl-C. Several texts are
continued at once if the artifact gives logits for several tokens of a step (logits: selected or full), else one after
another. There is no authentication: whoever reaches the address can use the model.
"""

from __future__ import annotations

import argparse
import sys

from pipeline.cli import generation_flags as flags
from pipeline.cli.plain import plain

MOST_AT_ONCE = 32


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb ``serve``."""
    parser = subparsers.add_parser("serve", help="serve a .pte to apps, as OpenAI's API", description=__doc__)
    flags.add_artifact(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    parser.add_argument(
        "--port", type=flags.whole(0, 65535), default=8000, help="0 takes any that is free (default: %(default)s)"
    )
    parser.add_argument(
        "--at-once",
        type=flags.whole(1, MOST_AT_ONCE),
        default=8,
        metavar="N",
        help="most texts that are continued at once (default: %(default)s)",
    )
    parser.add_argument(
        "--queue",
        type=flags.whole(0),
        default=64,
        metavar="N",
        help="most texts that may wait; more are refused (default: %(default)s)",
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of this origin read answers in a browser, as in http://localhost:3000; may be repeated",
    )
    flags.add_sampling(parser, "what a client leaves out; greedy unless a temperature is given")
    flags.add_cache(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serves until it is told to end."""
    with flags.libraries("serve"):
        sampling = flags.sampling(args)
        from pipeline.serving.app import application
        from pipeline.serving.server import Server, is_loopback, listen
        from pipeline.serving.worker import Worker
        from pipeline.session.served import open_served

    choices = flags.choices(args)
    with listen(args.host, args.port) as listening:
        worker = Worker(lambda: open_served(args.artifact, choices, args.at_once), max_waiting=args.queue)
        served = worker.start()
        is_private = is_loopback(args.host)
        notes = list(served.notes)
        if not is_private:
            notes.append(
                f"whoever reaches {args.host} can use the model: there is no authentication. --host 127.0.0.1 is for "
                "this machine alone"
            )
        if not args.quiet:
            for note in notes:
                print(plain(note), file=sys.stderr, flush=True)
        host, port = listening.getsockname()[:2]
        address = f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
        hosts = {"localhost", "127.0.0.1", "::1", args.host.lower()} if is_private else None
        server = Server(application(worker, served, sampling, hosts=hosts, origins=args.allow_origin), worker)

        def started() -> None:
            texts = f"{served.at_once} texts at once" if served.at_once > 1 else "one text at a time"
            print(f"{plain(served.name)} at {address}: {texts}, {served.max_context} tokens each", flush=True)

        server.run(listening, started)
        worker.stop()
    return 0
