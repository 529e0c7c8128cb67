"""The vectors of how a tab comes in: a link with an invitation, and a request for an open place."""

import hashlib
import json

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sottovoce.errors import MessageError
from sottovoce.wire.invitations import Invitation, PlaceRequest, worked

TOWN, BITS = "town", 12
CHALLENGE = bytes(range(48))
SIGNER = Ed25519PrivateKey.from_private_bytes(bytes(range(96, 128)))
PUBLIC = SIGNER.public_key().public_bytes_raw()


def place_of(body):
    request = PlaceRequest.from_table(json.loads(body))
    if not (request.is_worked(TOWN, BITS) and request.is_proven(TOWN)):
        raise MessageError("no work, or no proof")
    return {
        "challenge": request.challenge.hex(),
        "work": request.work.hex(),
        "public_key": request.public_key.hex(),
        "signature": request.signature.hex(),
    }


def link_of(text):
    return Invitation.from_link(text.decode()).to_table()


READERS = {"a request for a place": place_of, "a link with an invitation": link_of}


def _vectors():
    work = worked(TOWN, CHALLENGE, PUBLIC, BITS)
    good = PlaceRequest.made(SIGNER, TOWN, CHALLENGE, work).to_bytes()
    table = json.loads(good)
    other = PlaceRequest.made(SIGNER, "tow", CHALLENGE, work).to_bytes()
    wrong = [{"work": "00" * 8}, {"work": "00" * 7}, {"signature": "00" * 64}, {"challenge": "00"}]
    yield (
        "a request for a place",
        good,
        [other, *(json.dumps(table | one).encode() for one in wrong)],
    )
    server = "https://api.shop.example:8443"
    invitation = Invitation(server, "a certificate\n", "ab" * 32, 7, TOWN)
    link = invitation.link("https://shop.example/?page=1").encode()
    refused = [link[:-2], link.replace(b"#sv=", b"#"), b"https://shop.example/#sv=", link + b"%"]
    yield "a link with an invitation", link, refused


def files():
    """By file: what stands in it."""
    hashed = b"".join([b"sottovoce work\0", len(TOWN).to_bytes(4, "little"), TOWN.encode()])
    hashed += hashlib.sha256(CHALLENGE).digest() + PUBLIC
    given = {"federation": TOWN, "challenge": CHALLENGE.hex(), "bits": BITS}
    cases = [
        {
            "kind": kind,
            "bytes": content.hex(),
            "says": READERS[kind](content),
            "refused": [one.hex() for one in refused],
        }
        for kind, content, refused in _vectors()
    ]
    keys = {"signer": SIGNER.private_bytes_raw().hex()}
    given["hashed before the work"] = hashed.hex()
    return {"places.json": {"given": given, "private_keys": keys, "vectors": cases}}
