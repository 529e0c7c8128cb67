"""The public documents of a federation as static files: the same bytes that a server publishes,
whole at every moment, behind a real nginx."""

import base64
import contextlib
import gzip
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from people_world import POLICY
from server_world import Client, ServerProcess, new_folder

from sottovoce.cli import call
from sottovoce.stores import server as records
from sottovoce.stores import site as sites
from sottovoce.stores.server_folder import open_folder
from sottovoce.stores.site import KEPT_SECONDS, site_of, write_site
from sottovoce.wire.versions import decode_model

URL = "https://api.shop.example"


@pytest.fixture
def ask(sottovoce_):
    def ask(*words, code=0):
        got, out, err = sottovoce_(*words, "--json")
        assert got == code, err
        return json.loads(out or "{}")

    return ask


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A federation whose server has been started once, and what that published."""
    folder = new_folder(tmp_path_factory.mktemp("begun") / "town", rounds=1)
    with ServerProcess(folder.path) as server, Client(folder, server.port) as client:
        told = {name: client.get(f"/v1/{name}").body for name in ("terms", "catalogue", "model/0")}
        assert server.stop() == 0
    return folder.path, told


@pytest.fixture
def made(begun, tmp_path):
    """A copy of it, a script for pages, and what was published."""
    script = tmp_path / "built.js"
    script.write_text("export const version = 1;\n" * 50)
    return open_folder(shutil.copytree(begun[0], tmp_path / "town")), script, begun[1]


def files_in(out):
    return {str(one.relative_to(out)): one for one in out.rglob("*") if one.is_file()}


def genuine(out, entry):
    content = (out / entry["file"]).read_bytes()
    digest = base64.b64encode(hashlib.sha384(content).digest()).decode()
    assert entry["integrity"] == f"sha384-{digest}"
    assert entry["bytes"] == len(content)
    assert hashlib.sha256(content).hexdigest()[:20] in entry["file"]
    assert gzip.decompress((out / f"{entry['file']}.gz").read_bytes()) == content
    return content


def test_what_is_written_is_what_the_server_publishes_and_nothing_else(made, tmp_path, ask):
    folder, script, told = made
    out = tmp_path / "www"
    said = ask("serve", "site", folder.path, "--out", out, "--server", URL, "--script", script)
    index = json.loads((out / "index.json").read_text())
    assert index == said["index"]
    assert (index["server"], index["federation"]) == (URL, "little-town")
    assert genuine(out, index["terms"]) == told["terms"]
    assert genuine(out, index["catalogue"]) == told["catalogue"]
    assert genuine(out, index["model"]) == told["model/0"]
    assert genuine(out, index["script"]) == script.read_bytes()
    ours = folder.plan.terms
    assert decode_model(told["model/0"], n_items=ours.n_rows, width=ours.width).round == 0
    named = [part["file"] for part in index.values() if isinstance(part, dict)]
    there = {"index.json", "nginx.conf", ".site.lock", *named, *(f"{one}.gz" for one in named)}
    assert set(files_in(out)) == there
    assert f'integrity="{index["script"]["integrity"]}"' in said["script"]
    before = {name: one.read_bytes() for name, one in files_in(out).items()}
    ask("serve", "site", folder.path, "--out", out, "--server", URL, "--script", script)
    assert {name: one.read_bytes() for name, one in files_in(out).items()} == before


def test_what_is_wrong_is_said_in_a_sentence(made, tmp_path, ask, capsys, monkeypatch):
    folder, _, _ = made
    out, options = tmp_path / "www", ("--server", URL)
    ask("serve", "site", folder.path, "--out", folder.path / "www", *options, code=2)
    ask(
        "serve", "site", folder.path, "--out", out, *options, "--script", tmp_path / "no.js", code=2
    )
    ask("serve", "site", folder.path, "--out", out, "--server", "shop", code=2)
    ask("serve", "site", folder.path, "--out", out, code=2)
    monkeypatch.setattr(sites, "built_script", lambda: None)
    assert call(["serve", "site", str(folder.path), "--out", str(out), *options]) == 0
    assert "it is not built" in capsys.readouterr().out
    assert json.loads((out / "index.json").read_text())["script"] is None
    (out / "index.json").write_text("[]")
    ask("serve", "site", folder.path, "--out", out, *options)
    with sites.try_lock(out / ".site.lock"):
        ask("serve", "site", folder.path, "--out", out, *options, code=2)


FRAME = (
    "<meta content=\"connect-src 'self'\">"
    '<meta name="sottovoce-pages" content=""><meta name="sottovoce-federation" content="">'
)


@pytest.fixture
def library(tmp_path):
    """What pages load, as it lies beside a script that was built."""
    folder = tmp_path / "built"
    (folder / "words").mkdir(parents=True)
    for name in ("sottovoce.js", "elements.js", "consent.html", "words/en.json", "notes.txt"):
        (folder / name).write_text(f"what {name} has in it")
    (folder / "frame.html").write_text(FRAME)
    return folder


def test_pages_find_all_that_they_load_under_names_that_stay(made, library, tmp_path, ask):
    folder, _, _ = made
    out, script = tmp_path / "www", library / "sottovoce.js"
    command = ("serve", "site", folder.path, "--out", out, "--server", URL, "--script", script)
    said = ask(*command, "--page", "https://Shop.example/", "--page", "http://127.0.0.1:8080")
    assert said["index"]["library"] == "sottovoce"
    there = files_in(out / "sottovoce")
    names = {"sottovoce.js", "elements.js", "consent.html", "frame.html", "words/en.json"}
    assert set(there) == names | {f"{name}.gz" for name in names}
    for name in names - {"frame.html"}:
        assert there[name].read_text() == f"what {name} has in it"
    page = there["frame.html"].read_text()
    assert 'name="sottovoce-pages" content="http://127.0.0.1:8080 https://shop.example"' in page
    assert f'name="sottovoce-federation" content="{URL}"' in page
    assert f"connect-src 'self' {URL}" in page
    around = "frame-ancestors http://127.0.0.1:8080 https://shop.example"
    assert around in (out / "nginx.conf").read_text()
    # Without a shop nobody may have it in a frame.
    ask(*command)
    assert "frame-ancestors 'none'" in (out / "nginx.conf").read_text()
    assert 'name="sottovoce-pages" content=""' in there["frame.html"].read_text()
    for wrong in ("*", "null", "shop", "http://shop.example"):
        ask(*command, "--page", wrong, code=2)
    (library / "frame.html").write_text("of another release")
    ask(*command, code=2)


def next_model(store, round):
    """As if another round had been folded."""
    with store.writing() as link:
        items = np.full((40, 4), round, np.float32)
        records.save_model(link, round, items, np.full(40, round, np.int32))


def test_whoever_reads_the_index_finds_all_it_names_while_it_changes(made, tmp_path):
    folder, script, _ = made
    out, stop, seen, broken = tmp_path / "www", threading.Event(), set(), []

    def read():
        while not stop.is_set():
            with contextlib.suppress(FileNotFoundError):
                text = (out / "index.json").read_text()
                index = json.loads(text)
                seen.add(index["model"]["round"])
                for name in ("terms", "catalogue", "model", "script"):
                    try:
                        genuine(out, index[name])
                    except (OSError, AssertionError) as error:
                        broken.append(error)

    with contextlib.closing(folder.database()) as store:
        reader = threading.Thread(target=read)
        reader.start()
        try:
            for round in range(1, 30):
                next_model(store, round)
                with store.reading() as link:
                    assert write_site(site_of(folder, link, URL, script), out)
        finally:
            stop.set()
            reader.join()
    assert len(seen) > 1
    assert not broken


def test_what_was_named_stays_for_a_day(made, tmp_path):
    folder, script, _ = made
    out, now = tmp_path / "www", time.time()

    def written(at):
        with store.reading() as link:
            write_site(site_of(folder, link, URL, script), out, now=at)
        return {one.name.split("-")[1] for one in (out / "files").glob("model-*.bin")}

    with contextlib.closing(folder.database()) as store:
        assert written(now) == {"0"}
        next_model(store, 1)
        # It was in force for a month until now.
        assert written(now + 30 * KEPT_SECONDS) == {"0", "1"}
        next_model(store, 2)
        assert written(now + 30 * KEPT_SECONDS + 60) == {"0", "1", "2"}
        assert written(now + 31 * KEPT_SECONDS + 30) == {"1", "2"}
        assert written(now + 32 * KEPT_SECONDS) == {"2"}
    (out / "files" / ".model.half.new").write_text("of one that was killed")
    with contextlib.closing(folder.database()) as store:
        written(now)
    assert not list(out.rglob("*.new"))


def test_a_watch_follows_the_federation_until_it_is_stopped(made, tmp_path):
    folder, script, _ = made
    out = tmp_path / "www"
    command = [sys.executable, "-m", "sottovoce", "serve", "site", folder.path, "--out", out]
    options = ["--server", URL, "--script", script, "--watch"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    try:

        def until(round):
            end = time.monotonic() + 600
            while time.monotonic() < end:
                with contextlib.suppress(FileNotFoundError):
                    if json.loads((out / "index.json").read_text())["model"]["round"] == round:
                        return
                time.sleep(0.05)
            raise AssertionError(round)

        until(0)
        with contextlib.closing(folder.database()) as store:
            next_model(store, 1)
        until(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def find_nginx():
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if found is None:
        pytest.skip("nginx is not installed here (Debian: apt install nginx-light)")
    return found


def test_a_real_nginx_serves_it_with_the_headers_that_are_suggested(made, library, tmp_path, ask):
    folder, _, _ = made
    out, nginx, script = tmp_path / "www", find_nginx(), library / "sottovoce.js"
    where = ("--out", out, "--server", URL, "--script", script, "--page", "https://shop.example")
    ask("serve", "site", folder.path, *where)
    index = json.loads((out / "index.json").read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    users = "user root;" if os.geteuid() == 0 else ""
    place = tmp_path / "nginx.conf"
    place.write_text(
        f"{users} daemon off; pid {tmp_path}/nginx.pid; error_log {tmp_path}/error.log;\n"
        f"events {{}} http {{ access_log off; client_body_temp_path {tmp_path}/b; "
        f"proxy_temp_path {tmp_path}/p; fastcgi_temp_path {tmp_path}/f; "
        f"uwsgi_temp_path {tmp_path}/u; scgi_temp_path {tmp_path}/s;\n"
        f"server {{ listen 127.0.0.1:{port}; root {out}; include {out}/nginx.conf; }} }}\n"
    )
    process = subprocess.Popen([nginx, "-c", place, "-e", tmp_path / "error.log"])

    def get(path, **headers):
        told = {k.replace("_", "-"): v for k, v in headers.items()}
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.closing(link):
            link.request("GET", path, headers=told)
            answer = link.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()

    try:
        end = time.monotonic() + 600
        while time.monotonic() < end:
            with contextlib.suppress(ConnectionRefusedError):
                get("/index.json")
                break
            time.sleep(0.05)
        status, headers, body = get("/index.json", Origin="https://shop.example")
        assert (status, json.loads(body)) == (200, index)
        assert headers["access-control-allow-origin"] == "*"
        assert headers["content-type"] == "application/json"
        assert headers["cache-control"] == "public, max-age=60"
        kinds = {"terms": "application/json", "model": "application/octet-stream",
                 "script": "text/javascript", "catalogue": "application/json"}  # fmt: skip
        for name, kind in kinds.items():
            path = f"/{index[name]['file']}"
            status, headers, plain = get(path)
            assert (status, headers["content-type"]) == (200, kind)
            assert "immutable" in headers["cache-control"]
            assert headers["access-control-allow-origin"] == "*"
            status, headers, packed = get(path, Accept_Encoding="gzip, br")
            assert (status, headers["content-encoding"]) == (200, "gzip")
            assert headers["vary"].lower() == "accept-encoding"
            assert gzip.decompress(packed) == plain == (out / index[name]["file"]).read_bytes()
        kinds = {"elements.js": "text/javascript", "words/en.json": "application/json",
                 "consent.html": "text/html", "frame.html": "text/html"}  # fmt: skip
        for name, kind in kinds.items():
            status, headers, plain = get(f"/sottovoce/{name}")
            assert (status, headers["content-type"]) == (200, kind)
            assert plain == (out / "sottovoce" / name).read_bytes()
            assert headers["cache-control"] == "no-cache"
            around = headers.get("content-security-policy")
            frames = {"frame.html": "https://shop.example", "consent.html": "'self'"}
            assert around == (f"frame-ancestors {frames[name]}" if name in frames else None)
        for hidden in ("/nginx.conf", "/.site.lock", "/files/../../town/keys/ca.key"):
            assert get(hidden)[0] in (400, 404), hidden
        assert "connect-src 'self' https://api.shop.example" in (out / "nginx.conf").read_text()
    finally:
        process.terminate()
        process.wait(10)


def directives(policy):
    return dict(one.split(None, 1) for one in " ".join(policy.split()).split("; "))


def test_policies_let_the_centre_in_and_keep_other_sites_out(made, library, tmp_path, ask):
    """The policy of nginx.conf, and of both pages that tell a shop what to send, have what a page
    with `<sottovoce-consent>` needs. Pages of other sites cannot have it in a frame."""
    folder, _, _ = made
    out = tmp_path / "www"
    script = library / "sottovoce.js"
    ask("serve", "site", folder.path, "--out", out, "--server", URL, "--script", script)
    conf = (out / "nginx.conf").read_text()
    (written,) = re.findall(r'# add_header Content-Security-Policy "(.*)" always', conf)
    policies = {"nginx.conf": directives(written)}
    for page in ("tab.md", "tutorials/web-developer.md"):
        text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
        (told,) = re.findall(r"```text\nContent-Security-Policy: (.*?)\n```", text, re.S)
        policies[page] = directives(told)
    own = "'self'"
    wanted = directives(f"{POLICY.format(hashes='', frames=own)}; frame-ancestors {own}")
    for page, found in policies.items():
        assert set(found) == set(wanted), page
        for name, value in wanted.items():
            assert set(value.split()) <= set(found[name].split()), (page, name)
