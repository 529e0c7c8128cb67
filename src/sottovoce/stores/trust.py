"""Whom a device trusts. It makes no certificates, so it loads nothing that could."""

from __future__ import annotations

import ssl

from sottovoce.errors import KeyTrouble


def device_context(ca_pem: str) -> ssl.SSLContext:
    """What a device needs to speak TLS with the servers of one authority, and with no others."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=ca_pem)
    except (ssl.SSLError, ValueError):
        raise KeyTrouble(
            "the certificate authority of the invitation is no certificate; ask the operator for "
            "another invitation"
        ) from None
    return context
