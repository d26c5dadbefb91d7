// Tests/Profiles/pages writes this file from the profiles: change those, and run it.
public import FoundationEssentials

extension AuthProvider {
    /// Airtable; see `Deploy/providers/airtable.md`.
    public static func airtable(clientID: String, clientSecret: String? = nil) -> Self {
        Self("airtable", clientID, clientSecret)
    }

    /// Amazon Selling Partner; see `Deploy/providers/amazon-seller.md`.
    /// - Parameters:
    ///   - applicationID: The application's id in the Solution Provider Portal; the consent page knows the app by it,
    ///     not by the client id.
    ///   - sellerCentral: The host of Seller Central or Vendor Central of the seller's marketplace, such as
    ///     sellercentral-europe.amazon.com or sellercentral.amazon.co.jp.
    public static func amazonSeller(
        applicationID: String, clientID: String, clientSecret: String,
        sellerCentral: String = "sellercentral.amazon.com"
    ) -> Self {
        Self(
            "amazon-seller", clientID, clientSecret,
            parameters: ["application_id": applicationID, "seller_central": sellerCentral])
    }

    /// Asana; see `Deploy/providers/asana.md`.
    public static func asana(clientID: String, clientSecret: String) -> Self {
        Self("asana", clientID, clientSecret)
    }

    /// Atlassian; see `Deploy/providers/atlassian.md`.
    public static func atlassian(clientID: String, clientSecret: String) -> Self {
        Self("atlassian", clientID, clientSecret)
    }

    /// Auth0; see `Deploy/providers/auth0.md`.
    /// - Parameter domain: The tenant's host at Auth0, or its own host name.
    public static func auth0(domain: String, clientID: String, clientSecret: String? = nil) -> Self {
        Self("auth0", clientID, clientSecret, parameters: ["domain": domain])
    }

    /// authgear; see `Deploy/providers/authgear.md`.
    public static func authgear(issuer: URL?, clientID: String, clientSecret: String? = nil) -> Self {
        Self("authgear", clientID, clientSecret, issuer: issuer)
    }

    /// Bitbucket; see `Deploy/providers/bitbucket.md`.
    public static func bitbucket(clientID: String, clientSecret: String) -> Self {
        Self("bitbucket", clientID, clientSecret)
    }

    /// Box; see `Deploy/providers/box.md`.
    public static func box(clientID: String, clientSecret: String) -> Self {
        Self("box", clientID, clientSecret)
    }

    /// Calendly; see `Deploy/providers/calendly.md`.
    public static func calendly(clientID: String, clientSecret: String) -> Self {
        Self("calendly", clientID, clientSecret)
    }

    /// Canva; see `Deploy/providers/canva.md`.
    public static func canva(clientID: String, clientSecret: String) -> Self {
        Self("canva", clientID, clientSecret)
    }

    /// ClickUp; see `Deploy/providers/clickup.md`.
    public static func clickup(clientID: String, clientSecret: String) -> Self {
        Self("clickup", clientID, clientSecret)
    }

    /// Amazon Cognito; see `Deploy/providers/cognito.md`.
    /// - Parameters:
    ///   - region: The AWS region of the user pool.
    ///   - userPoolID: The user pool's id, which begins with its region.
    public static func cognito(
        region: String, userPoolID: String, clientID: String, clientSecret: String? = nil
    ) -> Self {
        Self("cognito", clientID, clientSecret, parameters: ["region": region, "user_pool_id": userPoolID])
    }

    /// Discord; see `Deploy/providers/discord.md`.
    public static func discord(clientID: String, clientSecret: String? = nil) -> Self {
        Self("discord", clientID, clientSecret)
    }

    /// Docusign; see `Deploy/providers/docusign.md`.
    /// - Parameter accountHost: The host of the account service: account-d.docusign.com for the development
    ///   environment.
    public static func docusign(
        clientID: String, accountHost: String = "account.docusign.com", clientSecret: String? = nil
    ) -> Self {
        Self("docusign", clientID, clientSecret, parameters: ["account_host": accountHost])
    }

    /// Dropbox; see `Deploy/providers/dropbox.md`.
    public static func dropbox(clientID: String, clientSecret: String? = nil) -> Self {
        Self("dropbox", clientID, clientSecret)
    }

    /// DuckDuckGo; see `Deploy/providers/duckduckgo.md`.
    public static func duckduckgo(clientID: String, clientSecret: String? = nil) -> Self {
        Self("duckduckgo", clientID, clientSecret)
    }

    /// Facebook; see `Deploy/providers/facebook.md`.
    /// - Parameter version: The version of the Graph API. Facebook withdraws a version about two years after the next
    ///   one.
    public static func facebook(clientID: String, clientSecret: String, version: String = "v26.0") -> Self {
        Self("facebook", clientID, clientSecret, parameters: ["version": version])
    }

    /// Figma; see `Deploy/providers/figma.md`.
    public static func figma(clientID: String, clientSecret: String) -> Self {
        Self("figma", clientID, clientSecret)
    }

    /// Fitbit (Google Health); see `Deploy/providers/fitbit.md`.
    public static func fitbit(clientID: String, clientSecret: String) -> Self {
        Self("fitbit", clientID, clientSecret)
    }

    /// GitHub; see `Deploy/providers/github.md`.
    /// - Parameter domain: The host of GitHub, of GitHub Enterprise Cloud with data residency, or of a GitHub
    ///   Enterprise Server.
    public static func github(clientID: String, clientSecret: String, domain: String = "github.com") -> Self {
        Self("github", clientID, clientSecret, parameters: ["domain": domain])
    }

    /// GitHub App; see `Deploy/providers/github-app.md`.
    /// - Parameter domain: The host of GitHub, of GitHub Enterprise Cloud with data residency, or of a GitHub
    ///   Enterprise Server.
    public static func githubApp(clientID: String, clientSecret: String, domain: String = "github.com") -> Self {
        Self("github-app", clientID, clientSecret, parameters: ["domain": domain])
    }

    /// GitLab; see `Deploy/providers/gitlab.md`.
    /// - Parameter domain: The host of GitLab.com or of a GitLab of one's own.
    public static func gitlab(clientID: String, domain: String = "gitlab.com", clientSecret: String? = nil) -> Self {
        Self("gitlab", clientID, clientSecret, parameters: ["domain": domain])
    }

    /// Google; see `Deploy/providers/google.md`.
    public static func google(clientID: String, clientSecret: String) -> Self {
        Self("google", clientID, clientSecret)
    }

    /// HubSpot; see `Deploy/providers/hubspot.md`.
    public static func hubspot(clientID: String, clientSecret: String) -> Self {
        Self("hubspot", clientID, clientSecret)
    }

    /// Instagram; see `Deploy/providers/instagram.md`.
    public static func instagram(clientID: String, clientSecret: String) -> Self {
        Self("instagram", clientID, clientSecret)
    }

    /// Intercom; see `Deploy/providers/intercom.md`.
    /// - Parameters:
    ///   - appHost: The host at which users of the region log in.
    ///   - apiHost: The host of the region's API.
    public static func intercom(
        clientID: String, clientSecret: String, appHost: String = "app.intercom.com",
        apiHost: String = "api.intercom.io"
    ) -> Self {
        Self("intercom", clientID, clientSecret, parameters: ["app_host": appHost, "api_host": apiHost])
    }

    /// Keycloak; see `Deploy/providers/keycloak.md`.
    /// - Parameters:
    ///   - domain: The host of the Keycloak server.
    ///   - realm: The realm's name.
    public static func keycloak(domain: String, realm: String, clientID: String, clientSecret: String? = nil) -> Self {
        Self("keycloak", clientID, clientSecret, parameters: ["domain": domain, "realm": realm])
    }

    /// Linear; see `Deploy/providers/linear.md`.
    public static func linear(clientID: String, clientSecret: String? = nil) -> Self {
        Self("linear", clientID, clientSecret)
    }

    /// LinkedIn; see `Deploy/providers/linkedin.md`.
    public static func linkedin(clientID: String, clientSecret: String) -> Self {
        Self("linkedin", clientID, clientSecret)
    }

    /// Microsoft; see `Deploy/providers/microsoft.md`.
    /// - Parameter tenant: Whose accounts may log in: the directory's id or domain, or common, organizations,
    ///   consumers.
    public static func microsoft(clientID: String, tenant: String = "common", clientSecret: String? = nil) -> Self {
        Self("microsoft", clientID, clientSecret, parameters: ["tenant": tenant])
    }

    /// Miro; see `Deploy/providers/miro.md`.
    public static func miro(clientID: String, clientSecret: String) -> Self {
        Self("miro", clientID, clientSecret)
    }

    /// monday.com; see `Deploy/providers/monday.md`.
    public static func monday(clientID: String, clientSecret: String) -> Self {
        Self("monday", clientID, clientSecret)
    }

    /// Notion; see `Deploy/providers/notion.md`.
    public static func notion(clientID: String, clientSecret: String) -> Self {
        Self("notion", clientID, clientSecret)
    }

    /// Okta; see `Deploy/providers/okta.md`.
    /// - Parameters:
    ///   - domain: The organization's host, or its own host name for Okta.
    ///   - authorizationServer: The id of the custom authorization server.
    public static func okta(
        domain: String, clientID: String, authorizationServer: String = "default", clientSecret: String? = nil
    ) -> Self {
        Self(
            "okta", clientID, clientSecret, parameters: ["domain": domain, "authorization_server": authorizationServer])
    }

    /// OpenAI (Sign in with ChatGPT); see `Deploy/providers/openai.md`.
    public static func openai(clientID: String, clientSecret: String? = nil) -> Self {
        Self("openai", clientID, clientSecret)
    }

    /// PayPal; see `Deploy/providers/paypal.md`.
    /// - Parameter domain: PayPal's domain: sandbox.paypal.com for the sandbox, which has a client id and a secret of
    ///   its own.
    public static func paypal(clientID: String, clientSecret: String, domain: String = "paypal.com") -> Self {
        Self("paypal", clientID, clientSecret, parameters: ["domain": domain])
    }

    /// Pipedrive; see `Deploy/providers/pipedrive.md`.
    public static func pipedrive(clientID: String, clientSecret: String) -> Self {
        Self("pipedrive", clientID, clientSecret)
    }

    /// QuickBooks; see `Deploy/providers/quickbooks.md`.
    public static func quickbooks(clientID: String, clientSecret: String) -> Self {
        Self("quickbooks", clientID, clientSecret)
    }

    /// Reddit; see `Deploy/providers/reddit.md`.
    public static func reddit(clientID: String, clientSecret: String) -> Self {
        Self("reddit", clientID, clientSecret)
    }

    /// Salesforce; see `Deploy/providers/salesforce.md`.
    /// - Parameter domain: The login host: login.salesforce.com, test.salesforce.com for sandboxes, or the
    ///   organization's own host.
    public static func salesforce(
        clientID: String, domain: String = "login.salesforce.com", clientSecret: String? = nil
    ) -> Self {
        Self("salesforce", clientID, clientSecret, parameters: ["domain": domain])
    }

    /// Shopify; see `Deploy/providers/shopify.md`.
    /// - Parameter shop: The shop's name: what stands before .myshopify.com.
    public static func shopify(shop: String, clientID: String, clientSecret: String) -> Self {
        Self("shopify", clientID, clientSecret, parameters: ["shop": shop])
    }

    /// Slack; see `Deploy/providers/slack.md`.
    public static func slack(clientID: String, clientSecret: String) -> Self {
        Self("slack", clientID, clientSecret)
    }

    /// Snowflake; see `Deploy/providers/snowflake.md`.
    /// - Parameter account: The account in its host name: organization-account, or the locator and its region.
    public static func snowflake(account: String, clientID: String, clientSecret: String) -> Self {
        Self("snowflake", clientID, clientSecret, parameters: ["account": account])
    }

    /// Spotify; see `Deploy/providers/spotify.md`.
    public static func spotify(clientID: String, clientSecret: String? = nil) -> Self {
        Self("spotify", clientID, clientSecret)
    }

    /// Square; see `Deploy/providers/square.md`.
    /// - Parameter domain: Square's domain: squareupsandbox.com for the sandbox, which has a client id and a secret of
    ///   its own.
    public static func square(clientID: String, clientSecret: String, domain: String = "squareup.com") -> Self {
        Self("square", clientID, clientSecret, parameters: ["domain": domain])
    }

    /// Strava; see `Deploy/providers/strava.md`.
    public static func strava(clientID: String, clientSecret: String) -> Self {
        Self("strava", clientID, clientSecret)
    }

    /// Stripe; see `Deploy/providers/stripe.md`.
    public static func stripe(clientID: String, clientSecret: String) -> Self {
        Self("stripe", clientID, clientSecret)
    }

    /// Threads; see `Deploy/providers/threads.md`.
    public static func threads(clientID: String, clientSecret: String) -> Self {
        Self("threads", clientID, clientSecret)
    }

    /// TikTok; see `Deploy/providers/tiktok.md`.
    public static func tiktok(clientID: String, clientSecret: String) -> Self {
        Self("tiktok", clientID, clientSecret)
    }

    /// Twitch; see `Deploy/providers/twitch.md`.
    public static func twitch(clientID: String, clientSecret: String? = nil) -> Self {
        Self("twitch", clientID, clientSecret)
    }

    /// Webflow; see `Deploy/providers/webflow.md`.
    public static func webflow(clientID: String, clientSecret: String) -> Self {
        Self("webflow", clientID, clientSecret)
    }

    /// X; see `Deploy/providers/x.md`.
    public static func x(clientID: String, clientSecret: String? = nil) -> Self {
        Self("x", clientID, clientSecret)
    }

    /// Xero; see `Deploy/providers/xero.md`.
    public static func xero(clientID: String, clientSecret: String? = nil) -> Self {
        Self("xero", clientID, clientSecret)
    }

    /// Zendesk; see `Deploy/providers/zendesk.md`.
    /// - Parameter subdomain: The account's part of its address: acme for acme.zendesk.com.
    public static func zendesk(subdomain: String, clientID: String, clientSecret: String) -> Self {
        Self("zendesk", clientID, clientSecret, parameters: ["subdomain": subdomain])
    }

    /// Zoho; see `Deploy/providers/zoho.md`.
    /// - Parameter domain: The domain of the data centre in which the users' accounts are: zoho.com, zoho.eu, zoho.in,
    ///   zoho.com.au, zoho.jp, zoho.com.cn, zohocloud.ca.
    public static func zoho(clientID: String, clientSecret: String, domain: String = "zoho.com") -> Self {
        Self("zoho", clientID, clientSecret, parameters: ["domain": domain])
    }

    /// Zoom; see `Deploy/providers/zoom.md`.
    public static func zoom(clientID: String, clientSecret: String? = nil) -> Self {
        Self("zoom", clientID, clientSecret)
    }
}
