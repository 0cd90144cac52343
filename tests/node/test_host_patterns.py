"""Host patterns: which servers and addresses a list means, and which hosts are the clouds' own."""

from __future__ import annotations

import pytest

from storage_node.settings.config import ServerConfig
from storage_node.settings.host_patterns import HostPatterns, UrlOrigin

HOSTS = HostPatterns(("data.example.org", "*.lan:*", "http://minio:9000", "10.0.0.0/8:*", "[fd00::1]:9000"))


@pytest.mark.parametrize(
    ("url", "is_listed"),
    [
        ("https://data.example.org/a", True),
        ("http://DATA.example.org.:80", True),
        ("https://data.example.org:8443", False),
        ("https://data.example.org.evil.net", False),
        ("https://a.b.lan:1", True),
        ("https://lan", False),
        ("http://minio:9000", True),
        ("https://minio:9000", False),
        ("http://10.1.2.3:99", True),
        ("http://11.1.2.3:99", False),
        ("http://[fd00::1]:9000", True),
        ("http://[fd00::1]:9001", False),
    ],
)
def test_servers(url: str, is_listed: bool) -> None:
    assert HOSTS.has(UrlOrigin.of(url)) is is_listed


@pytest.mark.parametrize(
    ("address", "is_admitted"),
    [
        ("8.8.8.8", True),
        ("2a00:1450:4001::1", True),
        ("10.1.1.1", True),
        ("::ffff:10.1.1.1", True),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("::", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::2", False),
        ("::ffff:127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
    ],
)
def test_addresses(address: str, is_admitted: bool) -> None:
    assert HOSTS.admits(UrlOrigin.of("https://a.lan"), address) is is_admitted


def test_hosts_of_clouds() -> None:
    own = """s3.amazonaws.com s3.eu-west-1.amazonaws.com s3-us-west-2.amazonaws.com
    s3-accelerate.dualstack.amazonaws.com
    s3.cn-north-1.amazonaws.com.cn storage.googleapis.com account.blob.core.windows.net"""
    others = """s3.us-east-1.elb.amazonaws.com b.s3.amazonaws.com s3.amazonaws.com.evil.net evils3.amazonaws.com
    ec2-1-2-3-4.compute.amazonaws.com storage.googleapis.com.evil.net x.storage.googleapis.com
    a.b.blob.core.windows.net"""
    assert all(UrlOrigin.of(f"https://{host}").is_cloud for host in own.split())
    assert not any(UrlOrigin.of(f"https://{host}").is_cloud for host in others.split())
    assert not any(UrlOrigin.of(url).is_cloud for url in ("http://s3.amazonaws.com", "https://s3.amazonaws.com:8443"))


@pytest.mark.parametrize("text", ["", "a b", "ftp://a", "10.0.0.0/33", "a/b", "[::1", "a:b", "10.0.0.1/8"])
def test_wrong_patterns(text: str) -> None:
    with pytest.raises(ValueError, match=r"^remote_hosts: "):
        ServerConfig(remote_hosts=(text,))


@pytest.mark.parametrize("url", ["http://%31%32%37.0.0.1", "http://a%2eb", "http://１２７.0.0.1", "http://a b"])
def test_hosts_that_can_be_read_in_several_ways(url: str) -> None:
    with pytest.raises(ValueError, match="is not the name or address of a host"):
        UrlOrigin.of(url)


@pytest.mark.parametrize("url", ["minio:9000", "minio", "ftp://minio", "//minio"])
def test_urls_of_other_schemes(url: str) -> None:
    with pytest.raises(ValueError, match="need a URL of http:// or https://"):
        UrlOrigin.of(url)
