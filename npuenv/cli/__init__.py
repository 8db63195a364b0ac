"""The command line: arguments to one call per command to an exit code. The only package that prints and exits.

This module imports nothing by itself, so that Ctrl-C during the imports is met by `main` already.
"""

from __future__ import annotations


def main(argv: list[str] | None = None) -> int:
    """Runs one command line and exits the process with its code; with `argv` given, returns the code instead."""
    try:
        if argv is None:
            from npuenv.terminal.signals import install_handlers

            install_handlers()
        from npuenv.cli.app import run
    except KeyboardInterrupt:
        code = _interrupted_at_start()
    else:
        code = run(argv)
    if argv is None:
        raise SystemExit(code)
    return code


def _interrupted_at_start() -> int:
    """Says so as `run` would; what was half imported is imported anew. A second signal no longer counts."""
    import signal

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    from npuenv.terminal.run import report_interrupt

    return report_interrupt(None)
