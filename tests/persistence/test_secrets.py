"""Secrets and transcripts in texts: what is found, what is not, what is left after redaction, and the time it takes.

Every key here is put together at run time: no literal of the repository has the shape of one.
"""

import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from persistence.errors import SecretDetectedError
from persistence.key_shapes import KEY_SHAPES
from persistence.secrets import find_secrets, is_transcript, line_of, redact, refuse_new_secrets, refuse_secrets

LETTERS = "aB3dE6gH9jK2mN5pQ8sT1vW4xY7zA0cD"
UPPER = "Q7W3E9R2T6Y1U5I8"
HEX = "0123456789abcdef" * 20


def b62(length: int) -> str:
    return (LETTERS * 40)[:length]


KEYS = {
    "aws_access_key": ["AKIA" + UPPER, "ASIA" + UPPER, "AKIA" + "IOSFODNN7EXAMPLE"],
    "aws_bedrock_key": ["ABSK" + b62(100)],
    "github_token": [f"gh{kind}_" + b62(36) for kind in "pousr"],
    "github_fine_grained_token": ["github_pat_" + b62(22) + "_" + b62(59)],
    "gitlab_token": ["glpat-" + b62(20), "gldt-" + b62(20), "glrt-" + b62(20)],
    "slack_token": [f"xox{kind}-" + "123456789012-" + b62(24) for kind in "abprse"],
    "slack_app_token": ["xapp-1-" + "A0123-" + b62(40)],
    "slack_webhook": ["https://hooks.slack.com/services/" + "T012/B012/" + b62(24)],
    "anthropic_key": ["sk-ant-" + "api03-" + b62(90)],
    "openai_key": ["sk-" + b62(48), "sk-" + "proj-" + b62(60), "sk-" + "a_B-9" * 8],
    "google_api_key": ["AIza" + b62(35)],
    "google_oauth_secret": ["GOCSPX-" + b62(28)],
    "google_access_token": ["ya29." + b62(60)],
    "google_refresh_token": ["1//0" + b62(60)],
    "stripe_key": ["sk_live_" + b62(24), "rk_test_" + b62(24)],
    "webhook_secret": ["whsec_" + b62(32)],
    "twilio_key": ["SK" + HEX[:32]],
    "sendgrid_key": ["SG." + b62(22) + "." + b62(43)],
    "npm_token": ["npm_" + b62(36)],
    "pypi_token": ["pypi-AgE" + b62(100)],
    "rubygems_key": ["rubygems_" + HEX[:48]],
    "docker_token": ["dckr_pat_" + b62(27)],
    "nuget_key": ["oy2" + "a1b2c" * 8 + "abc"],
    "clojars_token": ["CLOJARS_" + HEX[:60]],
    "azure_storage_key": ["AccountName=x;AccountKey=" + b62(86) + "=="],
    "azure_shared_access_key": ["SharedAccessKey=" + b62(43) + "="],
    "azure_sas": ["https://x.blob.core.windows.net/c?sv=2026&sig=" + b62(43) + "%3D"],
    "azure_client_secret": ["abc8Q~" + b62(34)],
    "digitalocean_token": ["dop_v1_" + HEX[:64]],
    "heroku_key": ["HRKU-" + b62(40)],
    "shopify_token": ["shpat_" + HEX[:32]],
    "square_token": ["sq0csp-" + b62(43)],
    "mailgun_key": ["key-" + HEX[:32]],
    "mailchimp_key": [HEX[:32] + "-us12"],
    "brevo_key": ["xkeysib-" + HEX[:64] + "-" + b62(16)],
    "telegram_bot_token": ["123456789:AA" + b62(33)],
    "discord_token": ["M" + b62(23) + "." + b62(6) + "." + b62(38)],
    "discord_webhook": ["https://discord.com/api/webhooks/123456789012345678/" + b62(68)],
    "huggingface_token": ["hf_" + b62(34)],
    "replicate_token": ["r8_" + b62(37)],
    "groq_key": ["gsk_" + b62(52)],
    "xai_key": ["xai-" + b62(80)],
    "perplexity_key": ["pplx-" + b62(48)],
    "tavily_key": ["tvly-" + b62(32)],
    "langsmith_key": ["lsv2_pt_" + HEX[:32] + "_" + HEX[:10]],
    "pinecone_key": ["pcsk_" + b62(70)],
    "elevenlabs_key": ["sk_" + HEX[:48]],
    "databricks_token": ["dapi" + HEX[:32]],
    "vault_token": ["hvs." + b62(90)],
    "terraform_token": [b62(14) + ".atlasv1." + b62(67)],
    "pulumi_token": ["pul-" + HEX[:40]],
    "doppler_token": ["dp.st.dev." + b62(43)],
    "linear_key": ["lin_api_" + b62(40)],
    "notion_token": ["ntn_" + b62(46), "secret_" + b62(43)],
    "figma_token": ["figd_" + b62(40)],
    "atlassian_token": ["ATATT3" + b62(180), "ATBB" + b62(32)],
    "airtable_token": ["pat" + b62(14) + "." + HEX[:64]],
    "asana_token": ["1/" + "1234567890123456" + ":" + HEX[:32]],
    "newrelic_key": ["NRAK-" + "ABCDEFGHIJKLMNOPQRSTUVWXYZ1"],
    "grafana_token": ["glsa_" + b62(32) + "_" + HEX[:8], "glc_" + b62(80)],
    "sentry_token": ["sntrys_" + b62(100), "sntryu_" + HEX[:64]],
    "postman_key": ["PMAK-" + HEX[:24] + "-" + HEX[:34]],
    "planetscale_token": ["pscale_tkn_" + b62(43)],
    "supabase_key": ["sbp_" + HEX[:40], "sb_secret_" + b62(31)],
    "netlify_token": ["nfp_" + b62(36)],
    "fly_token": ["fo1_" + b62(43), "fm2_" + b62(200)],
    "cloudflare_origin_key": ["v1.0-" + HEX[:24] + "-" + HEX[:146]],
    "age_secret_key": ["AGE-SECRET-KEY-1" + (UPPER * 4)[:58]],
    "onepassword_token": ["ops_eyJ" + b62(300)],
    "dropbox_token": ["sl." + b62(140)],
    "facebook_token": ["EAA" + b62(150)],
    "twitter_bearer": ["A" * 20 + b62(80)],
    "artifactory_token": ["AKCp" + b62(69)],
    "buildkite_token": ["bkua_" + HEX[:40]],
    "circleci_token": ["CCIPAT_" + b62(60)],
    "tailscale_key": ["tskey-auth-" + b62(16) + "-" + b62(32)],
    "contentful_token": ["CFPAT-" + b62(43)],
    "easypost_key": ["EZAK" + b62(54)],
    "dynatrace_token": ["dt0c01." + (UPPER * 2)[:24] + "." + (UPPER * 4)[:64]],
    "alibaba_access_key": ["LTAI" + b62(20)],
    "sourcegraph_token": ["sgp_" + HEX[:40]],
    "plaid_token": ["access-sandbox-" + "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f"],
    "typeform_token": ["tfp_" + b62(59)],
    "teams_webhook": ["https://acme.webhook.office.com/webhookb2/" + b62(80)],
    "totp_seed": ["otpauth://totp/acme:amy?issuer=acme&secret=" + "GEZDGNBVGY3TQOJQ"],
    "jwt": ["eyJ" + b62(33) + ".eyJ" + b62(60) + "." + b62(43)],
    "mapbox_secret": ["sk.eyJ" + b62(60) + "." + b62(22)],
}


def value_of(key: str) -> str:
    """The part of a sample that must be gone after redaction: its longest random run."""
    return max(re.findall(r"[A-Za-z0-9_-]{10,}", key), key=len)


def test_every_key_shape_has_a_sample_and_there_are_many() -> None:
    assert set(KEYS) == {shape.kind for shape in KEY_SHAPES}
    assert len(KEYS) >= 45


@pytest.mark.parametrize("kind", sorted(KEYS))
@pytest.mark.parametrize(
    "frame", ["{}", "the key is {}, keep it safe", "KEY='{}'", '{{"value":"{}"}}', "<{}>", "line one\n\t{}\nline three"]
)
def test_a_key_of_a_known_shape_is_found_and_named(kind: str, frame: str) -> None:
    for key in KEYS[kind]:
        text = frame.format(key)
        assert kind in [finding.kind for finding in find_secrets(text)], text
        assert value_of(key) not in redact(text)


def pem(label: str, *, end: bool = True) -> str:
    lines = ["-----BEGIN " + label + "-----", b62(64), b62(64), b62(20) + "=="]
    return "\n".join([*lines, "-----END " + label + "-----"] if end else lines)


@pytest.mark.parametrize(
    "label", ["RSA PRIVATE KEY", "PRIVATE KEY", "EC PRIVATE KEY", "OPENSSH PRIVATE KEY", "PGP PRIVATE KEY BLOCK"]
)
def test_a_private_key_is_taken_out_whole(label: str) -> None:
    text = f"before\n{pem(label)}\nafter"
    assert redact(text) == "before\n[redacted:private_key]\nafter"
    assert redact(text.replace("\n", "\\n")) == "before\\n[redacted:private_key]\\nafter"


def test_a_private_key_without_its_end_loses_its_lines_and_not_the_prose_after() -> None:
    text = f"{pem('RSA PRIVATE KEY', end=False)}\nand then some more words about it"
    assert b62(20) not in redact(text)
    assert redact(text).endswith("and then some more words about it")


@pytest.mark.parametrize(
    ("text", "secret", "kind"),
    [
        ("postgres://bot:{}@db.internal/x", "hunter2", "url_password"),
        ("redis://:{}@cache:6379/0", "pa55!x", "url_password"),
        ("see https://amy:{}@example.com/path", "pass", "url_password"),
        ("Authorization: Bearer {}", "abcdef" + "123456", "authorization"),
        ("-H 'authorization: basic {}'", "dXNlcjpw" + "YXNz", "authorization"),
        ("machine api.example.com login amy password {}", "tiger9", "netrc_password"),
        ("password: {}", "hunter22", "assignment"),
        ("Password = {}", "swordfish", "assignment"),
        ("DB_PASSWORD={}", "correct-horse", "assignment"),
        ("the passwd:{}", "s3cr3t", "assignment"),
        ("**Password:** {}", "hunter22", "assignment"),
        ('{{"password": "{}"}}', "correct horse battery", "assignment"),
        ("api_key={}&user=amy", "abc123def", "assignment"),
        ("apiKey: '{}'", "abc123def", "assignment"),
        ("client_secret: {}", "zyx987wvu", "assignment"),
        ("secret_access_key = {}", "wJalrXUtnFEMI" + "K7MDENGbPx", "assignment"),
        ("token => {}", "abc123def", "assignment"),
        ("token: `{}`", "abc123def", "assignment"),
        ("password=$VAR1 token={}", "abc123def", "assignment"),
        ("random {} string", "f8Kq2ZxW9bLmT4vYc7RjH1nPs6Gd3Xae", "random_string"),
        ("random {} string", "k3j4h5g6f7d8s9a0q1w2e3r4t5y6u7i8", "random_string"),
    ],
)
def test_passwords_headers_and_random_strings_are_found(text: str, secret: str, kind: str) -> None:
    full = text.format(secret)
    assert [finding.kind for finding in find_secrets(full)] == [kind]
    assert redact(full) == text.format(f"[redacted:{kind}]")


def false_positives() -> list[str]:
    lines = (Path(__file__).parent / "false_positives.txt").read_text("utf-8").split("\n")
    return [line for line in lines if line and not line.startswith("# ")]


@pytest.mark.parametrize("text", false_positives())
def test_what_only_looks_like_a_secret_is_left_alone(text: str) -> None:
    assert find_secrets(text) == []
    assert redact(f"see: {text} (said Amy)") == f"see: {text} (said Amy)"


def test_a_file_in_base64_over_several_lines_is_left_alone() -> None:
    lines = "\n".join(b62(200)[at : at + 76] for at in range(0, 120, 7)) + "\n" + b62(40) + "=="
    assert find_secrets(f"the picture:\n{lines}\nend") == []


def test_the_sample_workspace_holds_nothing_that_is_taken_for_a_secret() -> None:
    root = Path(__file__).parents[2]
    for path in [*(root / "examples").rglob("*"), *(root / "docs").rglob("*.md"), root / "README.md"]:
        if path.is_file():
            assert find_secrets(path.read_text("utf-8")) == [], path


def test_a_refusal_says_kind_line_and_offset_and_never_the_value() -> None:
    key = KEYS["github_token"][0]
    with pytest.raises(SecretDetectedError) as caught:
        refuse_secrets(f"one\ntwo {key}\n", where="memory/a.md")
    assert (caught.value.kind, caught.value.offset) == ("github_token", 8)
    assert "memory/a.md" in str(caught.value)
    assert "line 2" in str(caught.value)
    assert key[4:] not in str(caught.value)
    assert line_of(f"one\ntwo {key}\n", find_secrets(f"one\ntwo {key}\n")[0]) == 2


def test_only_a_secret_that_the_old_text_did_not_hold_is_refused() -> None:
    old, new = (f"key {KEYS['npm_token'][0][:-1]}{last}\n" for last in "xy")
    refuse_new_secrets(old, f"more\n{old}", where="x")
    with pytest.raises(SecretDetectedError):
        refuse_new_secrets(old, old + new, where="x")
    with pytest.raises(SecretDetectedError):
        refuse_new_secrets("", new, where="x")


WORDS = (
    "password",
    "=",
    ":",
    ";",
    "token",
    "AKIA",
    "://",
    "@",
    "a:",
    "[redacted:",
    "]",
    "'",
    "&",
    "ghp_",
    "eyJ",
    ".",
    "&x=",
    "é",
    "秘",
)
PIECES = st.sampled_from([*WORDS, " ", "\n", b62(36), HEX[:40], "AKIA" + UPPER, "-----BEGIN RSA PRIVATE KEY-----"])


@given(st.lists(PIECES | st.text(max_size=12), max_size=24).map("".join))
@example("password=token=hunter22")
@example("-----BEGIN RSA PRIVATE KEY-----" + "AKIA" + UPPER)
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@given(st.text(max_size=200))
def test_findings_are_in_order_apart_and_inside_the_text(text: str) -> None:
    at = 0
    for finding in find_secrets(text):
        assert at <= finding.start < finding.end <= len(text)
        at = finding.end


HOSTILE = {
    "jwt heads": "eyJ",
    "url heads": "a:/",
    "urls": "http://a:",
    "assignments": "token=",
    "keys without values": "password",
    "long tails": "token_aaaaaaaa_aaaa_aaa",
    "private key heads": "-----BEGIN RSA PRIVATE KEY-----",
    "block heads": "-----BEGIN ",
    "one letter": "A",
    "random letters": "aB3x",
    "blanks": " ",
    "tabs after a key": "token:\t\t\t\t\t\t\t\t",
    "quotes": "token:'",
    "dots": "SG.a.",
    "otpauth": "otpauth://totp/?",
    "netrc": "machine a login b ",
    "roles": "user:\n",
    "role fields": '{"role":"user",',
    "lines of base64": b62(60) + "\n",
    "webhooks": "discord.com/api/webhooks/1",
    "escapes": "\\n",
    "equal signs": "secret" + "=" * 7,
}


@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE)
def test_a_megabyte_of_a_hostile_text_takes_time_in_proportion(unit: str) -> None:
    def cost_s(size: int) -> float:
        text = (unit * (size // len(unit) + 1))[:size]
        started = time.process_time()
        find_secrets(text)
        is_transcript(text)
        return time.process_time() - started

    small, large = min(cost_s(125_000) for _ in range(3)), cost_s(1_000_000)
    assert large < 16 * small + 0.5  # eight times the text; squared time would be 64 times
    assert large < 10


@pytest.mark.parametrize(
    "text",
    [
        "User: hello\nAssistant: hi\nUser: bye",
        "**User**: hello\n\n**Assistant**: hi\nmore of it\n**User**: bye",
        "> human: a\n> ai: b\n> human: c",
        '{"role":"user","content":"a"}\n{"role":"assistant","content":"b"}',
        '[{"role": "user", "content": [{"type": "text"}]}, {"content": "x", "role": "assistant"}]',
    ],
)
def test_a_raw_conversation_is_a_transcript(text: str) -> None:
    assert is_transcript(text)


@pytest.mark.parametrize(
    "text",
    [
        "User: the person who pays\nCustomer: the company",
        "User: one\nUser: two\nUser: three",
        "The user: an overview. The assistant: a helper.",
        '{"role":"user","content":"a"}',
        "roles: admin, user, agent",
        "",
    ],
)
def test_notes_about_people_are_no_transcript(text: str) -> None:
    assert not is_transcript(text)
