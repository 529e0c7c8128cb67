"""The gateway: an nginx that lets nodes through to the SuperLink, and nothing else.

Fleet, control and runtime interfaces of a SuperLink share one port, and whoever reaches the control
interface can register a node of his own. So that port stays on loopback, and from outside only what
a registered node needs can be reached: each path is named here, everything else is 404.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from sottovoce.engines.processes import Child, require_port, wait_until_listening
from sottovoce.errors import ServiceError, UsageError
from sottovoce.stores.private import (
    private_file,
    private_folder,
    private_log,
    privately,
)

NODE_CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "pull-object",
    "confirm-message-received",
)
"""What a registered node calls, besides push-object. Registering is not among them: the operator
does it."""

_SITE = """\
# Gateway for the nodes of a Sottovoce federation: only what a registered node needs is let through.
# Put this file into /etc/nginx/conf.d/ and reload nginx.
upstream sottovoce_superlink {{
    server 127.0.0.1:{superlink_port};
}}

# No nodes' addresses in the log: time, status, call, and what the SuperLink answered.
log_format sottovoce_gateway '$time_iso8601 $status $request_method $uri $upstream_status';

# Whom limits are for: an IPv4 address, or a /64 of IPv6, which one visitor may have all of.
map $binary_remote_addr $sottovoce_node {{
    "~(?s)^(?<sottovoce_node_prefix>.{{8}}).{{8}}\\z" $sottovoce_node_prefix;
    default $binary_remote_addr;
}}

# Several times what {nodes} busy nodes behind one address need.
limit_req_zone $sottovoce_node zone=sottovoce_calls:10m rate={rate}r/s;
limit_conn_zone $sottovoce_node zone=sottovoce_connections:10m;

server {{
    listen {host}:{port} ssl;
    server_tokens off;

    ssl_certificate     {certificate};
    ssl_certificate_key {key};
    ssl_protocols       TLSv1.2 TLSv1.3;

    access_log {access_log} sottovoce_gateway;
    # nginx writes the node's address into every line of its error log that is about a request, so
    # that such lines are not written.
    error_log {error_log} emerg;
    limit_req zone=sottovoce_calls burst={burst} nodelay;
    limit_req_status 429;
    limit_conn sottovoce_connections {connections};
    limit_conn_status 429;
    # Silent and idle connections end soon; where there are too many, nginx cuts the oldest of them.
    client_header_timeout 15s;
    client_body_timeout 30s;
    keepalive_timeout 20s;
    send_timeout 60s;
    lingering_timeout 1s;  # the rest of what was refused is hardly waited for
    reset_timedout_connection on;

    # A call is passed on when all of it is here: a slow sender holds nothing of the SuperLink.
    proxy_request_buffering on;
    client_max_body_size 1m;

    # The only one that carries a report.
    location = /v1/fleet/push-object {{
        client_max_body_size {report_size}m;
{passing_object}
    }}

    location ~ ^/v1/fleet/({calls})$ {{
{passing}
    }}

    location / {{
        return 404;
    }}
}}
"""

_PASSING = """\
        limit_except POST {{ deny all; }}
        proxy_pass https://sottovoce_superlink/v1/fleet/{call};
        proxy_http_version 1.1;
        proxy_ssl_verify on;
        proxy_ssl_verify_depth 2;
        proxy_ssl_name localhost;
        proxy_ssl_trusted_certificate {authority};
        proxy_read_timeout 120s;"""

_WHOLE = """\
{user}daemon off;
worker_processes 1;
pid {work}/nginx.pid;
error_log {work}/error.log warn;
events {{ worker_connections 1024; }}
http {{
    client_body_temp_path {work}/body;
    proxy_temp_path {work}/proxy;
    fastcgi_temp_path {work}/fastcgi;
    uwsgi_temp_path {work}/uwsgi;
    scgi_temp_path {work}/scgi;
{site}
}}
"""


@dataclass(frozen=True, slots=True)
class Site:
    """Where the gateway listens and which files it uses."""

    keys: Path
    """The folder with the server's certificate and key, and the authority's certificate."""
    superlink_port: int
    port: int
    host: str = "0.0.0.0"
    access_log: Path = Path("/var/log/nginx/sottovoce-gateway.log")
    nodes_per_address: int = 8
    """Nodes that may be behind one address without being slowed down."""
    report_bytes: int = 64 * 2**20
    """The longest answer of a node."""

    def render(self) -> str:
        """The configuration of this site."""
        authority = _quoted(self.keys.absolute() / "ca.crt")
        nodes = self.nodes_per_address
        return _SITE.format(
            nodes=nodes,
            rate=25 * nodes,
            burst=100 * nodes,
            connections=16 * nodes,
            report_size=-(-self.report_bytes // 2**20),
            passing_object=_PASSING.format(call="push-object", authority=authority),
            passing=_PASSING.format(call="$1", authority=authority),
            superlink_port=self.superlink_port,
            host=f"[{self.host}]" if ":" in self.host else self.host,
            port=self.port,
            certificate=_quoted(self.keys.absolute() / "server.crt"),
            key=_quoted(self.keys.absolute() / "server.key"),
            access_log=_quoted(self.access_log.absolute()),
            error_log=_quoted(
                self.access_log.absolute().with_name(f"{self.access_log.stem}-error.log")
            ),
            calls="|".join(NODE_CALLS),
        )


def find_nginx() -> str | None:
    """Where nginx is, if it is installed. Debian puts it where users' paths do not look."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def start_gateway(site: Site, work: Path, environment: dict[str, str]) -> Child:
    """An nginx of our own with this site, its files in `work`. Ready when this returns."""
    nginx = find_nginx()
    if nginx is None:
        raise ServiceError("nginx is not installed; install it (on Debian: `apt install nginx`)")
    work = private_folder(work.absolute())
    require_port(site.host, site.port)
    config = work / "nginx.conf"
    # Started as root, nginx would give its work to an account that cannot read this folder.
    user = "user root;\n" if os.geteuid() == 0 else ""
    text = _WHOLE.format(user=user, work=_quoted(work), site=site.render())
    private_file(config).write_text(text)
    private_file(site.access_log.absolute())
    command: list[str | Path] = [nginx, "-p", work, "-c", config, "-e", work / "error.log"]
    log = private_log(work / "nginx.log")
    child = Child("nginx", privately(command), log=log, environment=environment)
    try:
        wait_until_listening(child, site.host, site.port)
    except BaseException:
        child.stop()
        raise
    return child


def count_turned_away(access_log: Path) -> int:
    """How often the gateway sent somebody away who asked for what is not let through."""
    if not access_log.exists():
        return 0
    lines = access_log.read_text(errors="replace").splitlines()
    return sum(line.split(" ", 2)[1:2] in (["404"], ["403"], ["400"]) for line in lines)


def _quoted(path: Path) -> str:
    text = str(path)
    if re.search(r"[\s;{}\"'$\\]", text):
        raise UsageError(f"nginx cannot use the path {text}; choose one without blanks and signs")
    return text
