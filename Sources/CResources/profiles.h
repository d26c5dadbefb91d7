// Tests/Profiles/pages writes this file from the profiles: change those, and run it.
static const unsigned char profile_airtable[] = {
#embed "profiles/airtable.json"
};
static const unsigned char profile_amazon_seller[] = {
#embed "profiles/amazon-seller.json"
};
static const unsigned char profile_asana[] = {
#embed "profiles/asana.json"
};
static const unsigned char profile_atlassian[] = {
#embed "profiles/atlassian.json"
};
static const unsigned char profile_auth0[] = {
#embed "profiles/auth0.json"
};
static const unsigned char profile_authgear[] = {
#embed "profiles/authgear.json"
};
static const unsigned char profile_bitbucket[] = {
#embed "profiles/bitbucket.json"
};
static const unsigned char profile_box[] = {
#embed "profiles/box.json"
};
static const unsigned char profile_calendly[] = {
#embed "profiles/calendly.json"
};
static const unsigned char profile_canva[] = {
#embed "profiles/canva.json"
};
static const unsigned char profile_clickup[] = {
#embed "profiles/clickup.json"
};
static const unsigned char profile_cognito[] = {
#embed "profiles/cognito.json"
};
static const unsigned char profile_discord[] = {
#embed "profiles/discord.json"
};
static const unsigned char profile_docusign[] = {
#embed "profiles/docusign.json"
};
static const unsigned char profile_dropbox[] = {
#embed "profiles/dropbox.json"
};
static const unsigned char profile_duckduckgo[] = {
#embed "profiles/duckduckgo.json"
};
static const unsigned char profile_facebook[] = {
#embed "profiles/facebook.json"
};
static const unsigned char profile_figma[] = {
#embed "profiles/figma.json"
};
static const unsigned char profile_fitbit[] = {
#embed "profiles/fitbit.json"
};
static const unsigned char profile_github[] = {
#embed "profiles/github.json"
};
static const unsigned char profile_github_app[] = {
#embed "profiles/github-app.json"
};
static const unsigned char profile_gitlab[] = {
#embed "profiles/gitlab.json"
};
static const unsigned char profile_google[] = {
#embed "profiles/google.json"
};
static const unsigned char profile_hubspot[] = {
#embed "profiles/hubspot.json"
};
static const unsigned char profile_instagram[] = {
#embed "profiles/instagram.json"
};
static const unsigned char profile_intercom[] = {
#embed "profiles/intercom.json"
};
static const unsigned char profile_keycloak[] = {
#embed "profiles/keycloak.json"
};
static const unsigned char profile_linear[] = {
#embed "profiles/linear.json"
};
static const unsigned char profile_linkedin[] = {
#embed "profiles/linkedin.json"
};
static const unsigned char profile_mcp[] = {
#embed "profiles/mcp.json"
};
static const unsigned char profile_microsoft[] = {
#embed "profiles/microsoft.json"
};
static const unsigned char profile_miro[] = {
#embed "profiles/miro.json"
};
static const unsigned char profile_monday[] = {
#embed "profiles/monday.json"
};
static const unsigned char profile_notion[] = {
#embed "profiles/notion.json"
};
static const unsigned char profile_oauth2[] = {
#embed "profiles/oauth2.json"
};
static const unsigned char profile_oidc[] = {
#embed "profiles/oidc.json"
};
static const unsigned char profile_okta[] = {
#embed "profiles/okta.json"
};
static const unsigned char profile_openai[] = {
#embed "profiles/openai.json"
};
static const unsigned char profile_paypal[] = {
#embed "profiles/paypal.json"
};
static const unsigned char profile_pipedrive[] = {
#embed "profiles/pipedrive.json"
};
static const unsigned char profile_quickbooks[] = {
#embed "profiles/quickbooks.json"
};
static const unsigned char profile_reddit[] = {
#embed "profiles/reddit.json"
};
static const unsigned char profile_salesforce[] = {
#embed "profiles/salesforce.json"
};
static const unsigned char profile_shopify[] = {
#embed "profiles/shopify.json"
};
static const unsigned char profile_slack[] = {
#embed "profiles/slack.json"
};
static const unsigned char profile_snowflake[] = {
#embed "profiles/snowflake.json"
};
static const unsigned char profile_spotify[] = {
#embed "profiles/spotify.json"
};
static const unsigned char profile_square[] = {
#embed "profiles/square.json"
};
static const unsigned char profile_static[] = {
#embed "profiles/static.json"
};
static const unsigned char profile_strava[] = {
#embed "profiles/strava.json"
};
static const unsigned char profile_stripe[] = {
#embed "profiles/stripe.json"
};
static const unsigned char profile_threads[] = {
#embed "profiles/threads.json"
};
static const unsigned char profile_tidal[] = {
#embed "profiles/tidal.json"
};
static const unsigned char profile_tiktok[] = {
#embed "profiles/tiktok.json"
};
static const unsigned char profile_twitch[] = {
#embed "profiles/twitch.json"
};
static const unsigned char profile_webflow[] = {
#embed "profiles/webflow.json"
};
static const unsigned char profile_x[] = {
#embed "profiles/x.json"
};
static const unsigned char profile_xero[] = {
#embed "profiles/xero.json"
};
static const unsigned char profile_zendesk[] = {
#embed "profiles/zendesk.json"
};
static const unsigned char profile_zoho[] = {
#embed "profiles/zoho.json"
};
static const unsigned char profile_zoom[] = {
#embed "profiles/zoom.json"
};
static const struct cresources_profile profiles[] = {
    {"airtable", profile_airtable, sizeof profile_airtable},
    {"amazon-seller", profile_amazon_seller, sizeof profile_amazon_seller},
    {"asana", profile_asana, sizeof profile_asana},
    {"atlassian", profile_atlassian, sizeof profile_atlassian},
    {"auth0", profile_auth0, sizeof profile_auth0},
    {"authgear", profile_authgear, sizeof profile_authgear},
    {"bitbucket", profile_bitbucket, sizeof profile_bitbucket},
    {"box", profile_box, sizeof profile_box},
    {"calendly", profile_calendly, sizeof profile_calendly},
    {"canva", profile_canva, sizeof profile_canva},
    {"clickup", profile_clickup, sizeof profile_clickup},
    {"cognito", profile_cognito, sizeof profile_cognito},
    {"discord", profile_discord, sizeof profile_discord},
    {"docusign", profile_docusign, sizeof profile_docusign},
    {"dropbox", profile_dropbox, sizeof profile_dropbox},
    {"duckduckgo", profile_duckduckgo, sizeof profile_duckduckgo},
    {"facebook", profile_facebook, sizeof profile_facebook},
    {"figma", profile_figma, sizeof profile_figma},
    {"fitbit", profile_fitbit, sizeof profile_fitbit},
    {"github", profile_github, sizeof profile_github},
    {"github-app", profile_github_app, sizeof profile_github_app},
    {"gitlab", profile_gitlab, sizeof profile_gitlab},
    {"google", profile_google, sizeof profile_google},
    {"hubspot", profile_hubspot, sizeof profile_hubspot},
    {"instagram", profile_instagram, sizeof profile_instagram},
    {"intercom", profile_intercom, sizeof profile_intercom},
    {"keycloak", profile_keycloak, sizeof profile_keycloak},
    {"linear", profile_linear, sizeof profile_linear},
    {"linkedin", profile_linkedin, sizeof profile_linkedin},
    {"mcp", profile_mcp, sizeof profile_mcp},
    {"microsoft", profile_microsoft, sizeof profile_microsoft},
    {"miro", profile_miro, sizeof profile_miro},
    {"monday", profile_monday, sizeof profile_monday},
    {"notion", profile_notion, sizeof profile_notion},
    {"oauth2", profile_oauth2, sizeof profile_oauth2},
    {"oidc", profile_oidc, sizeof profile_oidc},
    {"okta", profile_okta, sizeof profile_okta},
    {"openai", profile_openai, sizeof profile_openai},
    {"paypal", profile_paypal, sizeof profile_paypal},
    {"pipedrive", profile_pipedrive, sizeof profile_pipedrive},
    {"quickbooks", profile_quickbooks, sizeof profile_quickbooks},
    {"reddit", profile_reddit, sizeof profile_reddit},
    {"salesforce", profile_salesforce, sizeof profile_salesforce},
    {"shopify", profile_shopify, sizeof profile_shopify},
    {"slack", profile_slack, sizeof profile_slack},
    {"snowflake", profile_snowflake, sizeof profile_snowflake},
    {"spotify", profile_spotify, sizeof profile_spotify},
    {"square", profile_square, sizeof profile_square},
    {"static", profile_static, sizeof profile_static},
    {"strava", profile_strava, sizeof profile_strava},
    {"stripe", profile_stripe, sizeof profile_stripe},
    {"threads", profile_threads, sizeof profile_threads},
    {"tidal", profile_tidal, sizeof profile_tidal},
    {"tiktok", profile_tiktok, sizeof profile_tiktok},
    {"twitch", profile_twitch, sizeof profile_twitch},
    {"webflow", profile_webflow, sizeof profile_webflow},
    {"x", profile_x, sizeof profile_x},
    {"xero", profile_xero, sizeof profile_xero},
    {"zendesk", profile_zendesk, sizeof profile_zendesk},
    {"zoho", profile_zoho, sizeof profile_zoho},
    {"zoom", profile_zoom, sizeof profile_zoom},
};
