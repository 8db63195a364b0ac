"""What the user configured for pip, each setting with the place it comes from.

The reader follows pip's own rules (files in the order global, user, site, PIP_CONFIG_FILE; then sections `[global]`,
`[install]`; then PIP_* variables; empty values do not count), so that a machine set up for pip needs no second set-up.
Nothing is contacted here. Source: pip 26 `_internal/configuration.py`, `_internal/cli/parser.py`.
"""

from __future__ import annotations

import configparser
import posixpath
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from npuenv.core.messages import Message
from npuenv.host import Host, PathState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LISTS = ("extra-index-url", "find-links", "trusted-host")
_SINGLES = ("index-url", "cert", "client-cert", "proxy", "timeout", "retries", "no-index")
_OTHER_NAMES = {"default-timeout": "timeout", "pypi-url": "index-url"}
_TRUE = ("y", "yes", "t", "true", "on", "1")
INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_STRATEGY")  # of uv
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@dataclass(frozen=True, slots=True)
class PipSetting:
    """One configured value and where it stands: a file's path, or `$NAME` of an environment variable."""

    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class PipSettings:
    """The settings in force. None and empty mean: not configured. Show values only through `without_secrets`."""

    index_url: PipSetting | None = None
    extra_index_urls: tuple[PipSetting, ...] = ()
    find_links: tuple[PipSetting, ...] = ()
    trusted_hosts: tuple[PipSetting, ...] = ()
    cert: PipSetting | None = None
    client_cert: PipSetting | None = None
    proxy: PipSetting | None = None
    timeout_s: PipSetting | None = None
    retries: PipSetting | None = None
    is_no_index: bool = False
    proxies: Mapping[str, PipSetting] = field(default_factory=dict)  # lower-case variable name -> the value in force
    warnings: tuple[Message, ...] = ()  # what was configured but cannot be used here, and was left out


@dataclass(frozen=True, slots=True)
class UvSettings:
    """The same settings for uv. `public` may be printed and written to files; `secret` may only reach a process."""

    public: Mapping[str, str] = field(default_factory=dict)
    secret: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    @property
    def environ(self) -> dict[str, str]:
        """Everything that uv is to be started with."""
        return {**self.public, **self.secret}


def pip_settings(host: Host, prefix: str = "") -> PipSettings:
    """What pip would use on this host. `prefix` is the environment whose own pip.conf counts; "" when there is none."""
    environ = host.environ()
    warnings: list[Message] = []
    values: dict[str, PipSetting] = {}
    for section_values in _by_section(host, environ, prefix, warnings):
        values.update(section_values)
    for name, value in sorted(environ.items()):
        option = _option(name[4:]) if name.startswith("PIP_") else ""
        if option in (*_LISTS, *_SINGLES) and value:
            values[option] = PipSetting(value, f"${name}")
    return _usable(host, _settings(values, environ), warnings)


def for_uv(settings: PipSettings, indexes: Mapping[str, str] | None = None) -> UvSettings:
    """The environment and options that make uv behave as pip would; credentials become variables of their own.

    `indexes`: addresses by label, for the credentials a user's mirror may carry.
    """
    public = {"UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never"}
    secret: dict[str, str] = {}
    if settings.index_url:
        public["UV_DEFAULT_INDEX"] = named_index("pip-index", settings.index_url.value, secret)
    numbered = enumerate(settings.extra_index_urls, 1)
    extras = [named_index(f"pip-extra-{number}", item.value, secret) for number, item in numbered]
    if extras:
        # pip gives all indexes the same rank; uv would let the first one that knows a name shadow the others.
        public |= {"UV_INDEX": " ".join(extras), "UV_INDEX_STRATEGY": "unsafe-best-match"}
    if settings.find_links:
        links = ",".join(item.value for item in settings.find_links)
        (public if links == without_secrets(links) else secret)["UV_FIND_LINKS"] = links
    if settings.trusted_hosts:
        public["UV_INSECURE_HOST"] = " ".join(item.value for item in settings.trusted_hosts)
    public |= _transport(settings)
    secret |= _proxy_variables(settings)
    for label, url in (indexes or {}).items():
        named_index(label, url, secret)
    return UvSettings(public, secret, ("--no-index",) if settings.is_no_index else ())


def named_index(name: str, url: str, secret: dict[str, str]) -> str:
    """`name=url` without credentials; those are put into `secret` under the variables that uv reads for that name."""
    parts = urlsplit(url)
    if parts.username is None:
        return f"{name}={url}"
    variable = re.sub(r"[^A-Z0-9]", "_", name.upper())
    secret[f"UV_INDEX_{variable}_USERNAME"] = unquote(parts.username)
    if parts.password is not None:
        secret[f"UV_INDEX_{variable}_PASSWORD"] = unquote(parts.password)
    return f"{name}={urlunsplit(parts._replace(netloc=parts.netloc.rpartition('@')[2]))}"


def without_secrets(text: str) -> str:
    """The text with user name and password of every address replaced by `***`.

    Example: "https://me:pw@host/simple" -> "https://***@host/simple"
    """
    return re.sub(r"(?<=://)[^/\s,]*@", "***@", text)


def local_folder(place: str) -> str | None:
    """The path behind a `file://` address or a plain path; None for a place on the network."""
    if place.startswith("file:"):
        return unquote(urlsplit(place).path)
    return None if "://" in place else place


def _by_section(
    host: Host, environ: Mapping[str, str], prefix: str, warnings: list[Message]
) -> Iterator[dict[str, PipSetting]]:
    """The values of `[global]`, then of `[install]`, each merged over all files: a section beats a file, as in pip."""
    merged: dict[str, dict[str, PipSetting]] = {"global": {}, "install": {}}
    for path in _config_files(host, environ, prefix):
        looked = host.look(path)
        if looked.state is PathState.UNREADABLE:
            warnings.append(Message("lock.pip-config-unreadable", {"path": path, "why": looked.error}))
        if looked.state is not PathState.FILE:
            continue
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(looked.text, source=path)
        except configparser.Error as error:
            why = without_secrets(str(error).splitlines()[0])
            warnings.append(Message("lock.pip-config-unreadable", {"path": path, "why": why}))
            continue
        for section, values in merged.items():
            if parser.has_section(section):
                pairs = ((_option(key), value) for key, value in parser.items(section))
                values.update({option: PipSetting(value, path) for option, value in pairs if value})
    yield from merged.values()


def _config_files(host: Host, environ: Mapping[str, str], prefix: str) -> list[str]:
    """Paths from weak to strong. PIP_CONFIG_FILE replaces the user's files; the null device switches all files off."""
    chosen = environ.get("PIP_CONFIG_FILE")
    if chosen == "/dev/null":
        return []
    home = environ.get("HOME", "")
    shared = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    own = environ.get("XDG_CONFIG_HOME") or posixpath.join(home, ".config")
    paths = [posixpath.join(folder, "pip/pip.conf") for folder in shared] + ["/etc/pip.conf"]
    if not (chosen and host.look(chosen).state is PathState.FILE):
        paths += [posixpath.join(home, ".pip/pip.conf"), posixpath.join(own, "pip/pip.conf")]
    paths += [posixpath.join(prefix, "pip.conf")] if prefix else []
    return paths + ([chosen] if chosen else [])


def _option(key: str) -> str:
    name = key.lower().replace("_", "-").lstrip("-")
    return _OTHER_NAMES.get(name, name)


def _settings(values: Mapping[str, PipSetting], environ: Mapping[str, str]) -> PipSettings:
    def several(option: str) -> tuple[PipSetting, ...]:
        found = values.get(option)
        words = dict.fromkeys(found.value.split()) if found else ()
        return tuple(PipSetting(word, found.origin) for word in words) if found else ()

    proxies = {}
    for name in _PROXIES:
        # Lower case wins, as in pip's own HTTP library; uv would ask the upper-case one first.
        spelled = next((spelling for spelling in (name, name.upper()) if environ.get(spelling)), None)
        if spelled:
            proxies[name] = PipSetting(environ[spelled], f"${spelled}")
    return PipSettings(
        index_url=values.get("index-url"),
        extra_index_urls=several("extra-index-url"),
        find_links=several("find-links"),
        trusted_hosts=several("trusted-host"),
        cert=values.get("cert"),
        client_cert=values.get("client-cert"),
        proxy=values.get("proxy"),
        timeout_s=values.get("timeout"),
        retries=values.get("retries"),
        is_no_index="no-index" in values and values["no-index"].value.lower() in _TRUE,
        proxies=proxies,
    )


def _usable(host: Host, settings: PipSettings, warnings: list[Message]) -> PipSettings:
    """The settings without local places that do not exist; each one left out gives a warning."""

    def is_there(item: PipSetting) -> bool:
        folder = local_folder(item.value)
        if folder is None or host.look(folder).state not in (PathState.ABSENT, PathState.UNREADABLE):
            return True
        where = {"place": without_secrets(item.value), "origin": item.origin}
        warnings.append(Message("lock.pip-place-missing", where))
        return False

    extras = [item for item in settings.extra_index_urls if is_there(item)]
    index, is_no_index = settings.index_url, settings.is_no_index
    if index and not is_there(index):
        # Falling back to the public registry would be a choice the user did not make: the next index, or none.
        index, is_no_index = (extras.pop(0), is_no_index) if extras else (None, True)
    certs = [item if item and is_there(item) else None for item in (settings.cert, settings.client_cert)]
    links = tuple(item for item in settings.find_links if is_there(item))
    return replace(
        settings,
        index_url=index,
        extra_index_urls=tuple(extras),
        find_links=links,
        cert=certs[0],
        client_cert=certs[1],
        is_no_index=is_no_index,
        warnings=tuple(warnings),
    )


def _transport(settings: PipSettings) -> dict[str, str]:
    found = {"SSL_CERT_FILE": settings.cert, "SSL_CLIENT_CERT": settings.client_cert}
    env = {name: item.value for name, item in found.items() if item}
    if settings.timeout_s and re.fullmatch(r"\d+(\.\d+)?", settings.timeout_s.value):
        env["UV_HTTP_TIMEOUT"] = str(max(1, round(float(settings.timeout_s.value))))
    if settings.retries and re.fullmatch(r"\d{1,3}", settings.retries.value):
        env["UV_HTTP_RETRIES"] = settings.retries.value
    return env


def _proxy_variables(settings: PipSettings) -> dict[str, str]:
    """Both spellings of each proxy variable with one value; pip's own `proxy` stands for http and https."""
    chosen = {name: item.value for name, item in settings.proxies.items()}
    if settings.proxy:
        address = settings.proxy.value
        address = address if "://" in address else f"http://{address}"
        chosen |= {"http_proxy": address, "https_proxy": address}
    return {spelling: value for name, value in chosen.items() for spelling in (name, name.upper())}
