"""What the keys of well-known services look like, as a table. How it is applied to a text is in `secrets`.

Every pattern runs in linear time on any text: it begins with a literal at a token's start, repeats one class of characters at
a time, possessively, and never looks further than its own token.
"""

import re
from dataclasses import dataclass
from typing import Final

_START: Final = r"(?<![A-Za-z0-9_-])"


@dataclass(frozen=True, slots=True)
class KeyShape:
    """`kind` names the service; a text without any of `hints` holds no such key. The group `value`, if any, is the secret."""

    kind: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]


def _shape(kind: str, hints: str, pattern: str) -> KeyShape:
    return KeyShape(kind, tuple(hints.split()), re.compile(_START + pattern, re.ASCII))


KEY_SHAPES: Final = (
    _shape("aws_access_key", "AKIA ASIA ABIA ACCA", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _shape("aws_bedrock_key", "ABSK", r"ABSK[A-Za-z0-9+/]{60,400}+=*"),
    _shape("github_token", "ghp_ gho_ ghu_ ghs_ ghr_", r"gh[pousr]_[A-Za-z0-9]{36,255}+"),
    _shape("github_fine_grained_token", "github_pat_", r"github_pat_[A-Za-z0-9_]{20,255}+"),
    _shape(
        "gitlab_token",
        "glpat- gldt- glrt- glptt- glcbt- glft- glimt- glsoat- glagent- glffct-",
        r"gl(?:pat|dt|rt|ptt|cbt|ft|imt|soat|agent|ffct)-[A-Za-z0-9_.-]{20,255}+",
    ),
    _shape("slack_token", "xox", r"xox[abcdeoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,255}+"),
    _shape("slack_app_token", "xapp-", r"xapp-[0-9]-[A-Za-z0-9-]{20,255}+"),
    _shape("slack_webhook", "hooks.slack.com", r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9_/-]{20,255}+"),
    _shape("anthropic_key", "sk-ant-", r"sk-ant-[A-Za-z0-9_-]{20,255}+"),
    _shape("openai_key", "sk-", r"sk-(?:proj|svcacct|admin|None|or-v1|lf|live)-[A-Za-z0-9_-]{20,255}+"),
    _shape("openai_key", "sk-", r"sk-[A-Za-z0-9]{20,255}+"),
    _shape("openai_key", "sk-", r"sk-(?=[A-Za-z_-]{0,40}+[0-9])(?=[a-z0-9_-]{0,40}+[A-Z])[A-Za-z0-9_-]{20,255}+"),
    _shape("google_api_key", "AIza", r"AIza[A-Za-z0-9_-]{35}"),
    _shape("google_oauth_secret", "GOCSPX-", r"GOCSPX-[A-Za-z0-9_-]{20,60}+"),
    _shape("google_access_token", "ya29.", r"ya29\.[A-Za-z0-9_-]{20,400}+"),
    _shape("google_refresh_token", "1//0", r"1//0[A-Za-z0-9_-]{40,200}+"),
    _shape("stripe_key", "sk_ rk_", r"(?:sk|rk)_(?:live|test|prod)_[A-Za-z0-9]{10,255}+"),
    _shape("webhook_secret", "whsec_", r"whsec_[A-Za-z0-9+/]{20,255}+=*"),
    _shape("twilio_key", "SK", r"SK[0-9a-f]{32}(?![A-Za-z0-9])"),
    _shape("sendgrid_key", "SG.", r"SG\.[A-Za-z0-9_-]{16,40}+\.[A-Za-z0-9_-]{16,80}+"),
    _shape("npm_token", "npm_", r"npm_[A-Za-z0-9]{36}"),
    _shape("pypi_token", "pypi-AgE", r"pypi-AgE[A-Za-z0-9_-]{16,400}+"),
    _shape("rubygems_key", "rubygems_", r"rubygems_[0-9a-f]{48}"),
    _shape("docker_token", "dckr_", r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{20,100}+"),
    _shape("nuget_key", "oy2", r"oy2[a-z0-9]{43}(?![A-Za-z0-9])"),
    _shape("clojars_token", "CLOJARS_", r"CLOJARS_[a-z0-9]{60}"),
    _shape("azure_storage_key", "AccountKey=", r"AccountKey=(?P<value>[A-Za-z0-9+/]{60,120}+=*)"),
    _shape("azure_shared_access_key", "SharedAccessKey=", r"SharedAccessKey=(?P<value>[A-Za-z0-9+/]{40,120}+=*)"),
    _shape("azure_sas", "sig=", r"sig=(?P<value>[A-Za-z0-9%+/]{40,120}+=*)"),
    _shape("azure_client_secret", "8Q~", r"[A-Za-z0-9_.~-]{3}8Q~[A-Za-z0-9_.~-]{31,40}+"),
    _shape("digitalocean_token", "_v1_", r"do[opr]_v1_[a-f0-9]{64}"),
    _shape("heroku_key", "HRKU-", r"HRKU-[A-Za-z0-9_-]{36,100}+"),
    _shape("shopify_token", "shp", r"shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}"),
    _shape("square_token", "sq0", r"sq0(?:atp|csp|idp)-[A-Za-z0-9_-]{22,60}+"),
    _shape("mailgun_key", "key-", r"key-[0-9a-f]{32}(?![A-Za-z0-9])"),
    _shape("mailchimp_key", "-us", r"[0-9a-f]{32}-us[0-9]{1,2}(?![A-Za-z0-9])"),
    _shape("brevo_key", "xkeysib-", r"xkeysib-[0-9a-f]{64}-[A-Za-z0-9]{16}"),
    _shape("telegram_bot_token", ":AA", r"[0-9]{8,10}:AA[A-Za-z0-9_-]{32,34}(?![A-Za-z0-9_-])"),
    _shape("discord_token", "M N O", r"[MNO][A-Za-z0-9_-]{22,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}(?![A-Za-z0-9_-])"),
    _shape("discord_webhook", "/api/webhooks/", r"discord(?:app)?\.com/api/webhooks/[0-9]{10,25}+/[A-Za-z0-9_-]{40,100}+"),
    _shape("huggingface_token", "hf_", r"hf_[A-Za-z0-9]{30,60}+"),
    _shape("replicate_token", "r8_", r"r8_[A-Za-z0-9]{30,60}+"),
    _shape("groq_key", "gsk_", r"gsk_[A-Za-z0-9]{40,80}+"),
    _shape("xai_key", "xai-", r"xai-[A-Za-z0-9]{60,120}+"),
    _shape("perplexity_key", "pplx-", r"pplx-[A-Za-z0-9]{40,80}+"),
    _shape("tavily_key", "tvly-", r"tvly-[A-Za-z0-9_-]{20,80}+"),
    _shape("langsmith_key", "lsv2_", r"lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{8,12}"),
    _shape("pinecone_key", "pcsk_", r"pcsk_[A-Za-z0-9_]{40,120}+"),
    _shape("elevenlabs_key", "sk_", r"sk_[0-9a-f]{48}(?![A-Za-z0-9])"),
    _shape("databricks_token", "dapi", r"dapi[0-9a-f]{32}(?![A-Za-z0-9])"),
    _shape("vault_token", "hvs. hvb. hvr.", r"hv[sbr]\.[A-Za-z0-9_-]{24,255}+"),
    _shape("terraform_token", ".atlasv1.", r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_-]{40,100}+"),
    _shape("pulumi_token", "pul-", r"pul-[0-9a-f]{40}(?![A-Za-z0-9])"),
    _shape("doppler_token", "dp.", r"dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9._-]{40,100}+"),
    _shape("linear_key", "lin_", r"lin_(?:api|oauth|wh)_[A-Za-z0-9]{32,100}+"),
    _shape("notion_token", "ntn_ secret_", r"(?:ntn|secret)_[A-Za-z0-9]{40,60}+"),
    _shape("figma_token", "figd_", r"figd_[A-Za-z0-9_-]{36,80}+"),
    _shape("atlassian_token", "ATATT3 ATCTT3 ATBB", r"(?:ATATT3|ATCTT3|ATBB)[A-Za-z0-9_=-]{20,400}+"),
    _shape("airtable_token", "pat", r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
    _shape("asana_token", "/", r"[0-9]/[0-9]{16}(?:/[0-9]{16})?:[0-9a-f]{32}(?![A-Za-z0-9])"),
    _shape("newrelic_key", "NRAK- NRJS- NRII- NRRA-", r"NR(?:AK|JS|II|RA)-[A-Za-z0-9_-]{19,50}+"),
    _shape("grafana_token", "glsa_ glc_", r"(?:glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}|glc_[A-Za-z0-9+/]{32,400}+=*)"),
    _shape("sentry_token", "sntrys_ sntryu_", r"sntry[su]_[A-Za-z0-9_=+/]{40,400}+"),
    _shape("postman_key", "PMAK-", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}"),
    _shape("planetscale_token", "pscale_", r"pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_=.-]{32,100}+"),
    _shape("supabase_key", "sbp_ sb_secret_", r"(?:sbp_[0-9a-f]{40}|sb_secret_[A-Za-z0-9_-]{20,100}+)"),
    _shape("netlify_token", "nfp_", r"nfp_[A-Za-z0-9]{36,60}+"),
    _shape("fly_token", "fo1_ fm2_ fm1r_", r"(?:fo1_[A-Za-z0-9_-]{40,60}+|fm(?:1r|2)_[A-Za-z0-9+/=,]{80,800}+)"),
    _shape("cloudflare_origin_key", "v1.0-", r"v1\.0-[0-9a-f]{24}-[0-9a-f]{100,160}+"),
    _shape("age_secret_key", "AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[0-9A-Z]{58}"),
    _shape("onepassword_token", "ops_eyJ", r"ops_eyJ[A-Za-z0-9+/=_-]{80,2000}+"),
    _shape("dropbox_token", "sl.", r"sl\.(?:u\.)?[A-Za-z0-9_-]{100,1500}+"),
    _shape("facebook_token", "EAA", r"EAA[A-Za-z0-9]{90,400}+"),
    _shape("twitter_bearer", "AAAAAAAAAAAAAAAAAAAA", r"A{20}[A-Za-z0-9%]{40,200}+"),
    _shape("artifactory_token", "AKCp", r"AKCp[A-Za-z0-9]{60,100}+"),
    _shape("buildkite_token", "bkua_", r"bkua_[0-9a-f]{40}"),
    _shape("circleci_token", "CCIPAT_", r"CCIPAT_[A-Za-z0-9_]{30,100}+"),
    _shape("tailscale_key", "tskey-", r"tskey-[a-z]{2,12}+-[A-Za-z0-9]{8,40}+(?:-[A-Za-z0-9]{8,60}+)?"),
    _shape("contentful_token", "CFPAT-", r"CFPAT-[A-Za-z0-9_-]{40,60}+"),
    _shape("easypost_key", "EZAK EZTK", r"EZ[AT]K[A-Za-z0-9]{54}"),
    _shape("dynatrace_token", "dt0", r"dt0[a-z][0-9]{2}\.[A-Z0-9]{24}\.[A-Z0-9]{64}"),
    _shape("alibaba_access_key", "LTAI", r"LTAI[A-Za-z0-9]{16,24}(?![A-Za-z0-9])"),
    _shape("sourcegraph_token", "sgp_", r"sgp_[A-Za-z0-9_]{40,100}+"),
    _shape("plaid_token", "access-", r"access-(?:sandbox|development|production)-[0-9a-f]{8}-[0-9a-f-]{27}"),
    _shape("typeform_token", "tfp_", r"tfp_[A-Za-z0-9_=.-]{40,80}+"),
    _shape("teams_webhook", "webhook.office.com", r"[a-z0-9]{1,60}+\.webhook\.office\.com/webhookb2/[A-Za-z0-9@/_-]{40,400}+"),
    _shape("totp_seed", "otpauth://", r"otpauth://[a-z]{4}/[^\s?]{0,200}\?[^\s]{0,100}?secret=(?P<value>[A-Za-z2-7]{16,128}+)"),
    _shape(
        "jwt",
        "eyJ",
        r"eyJ[A-Za-z0-9_-]{8,4000}+\.eyJ[A-Za-z0-9_-]{4,8000}+\.[A-Za-z0-9_-]{10,4000}+",
    ),
    _shape("mapbox_secret", "sk.eyJ", r"sk\.eyJ[A-Za-z0-9_-]{20,400}+\.[A-Za-z0-9_-]{10,100}+"),
)
