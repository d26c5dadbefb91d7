import ExternalText
import JOSE
import OAuth
package import Reactor

/// The command line of `token-broker-provider`.
package struct ProviderOptions: Sendable {
    /// Why a command line is refused. `description` is for people and names the option.
    package struct Mistake: Error, Equatable, CustomStringConvertible {
        package let description: String
    }

    package var listen = SocketAddress(ip: .v4([127, 0, 0, 1]), port: 8181)
    package var configuration = ProviderConfiguration(profile: .tidal, clients: [])
    /// Nil means `http` and the address that the server listens on.
    package var publicBaseURL: BaseURL?
    /// How connections are encrypted; nil for plain HTTP.
    package var https: HTTPS?
    package var showsHelp = false
    /// Whether the profiles are to be listed, for `--profile list`.
    package var listsProfiles = false

    package enum HTTPS: Sendable, Equatable {
        /// PEM files: the certificate with those that lead to its root, and its key.
        case files(certificate: String, key: String)
        /// A certificate that is issued at the start. Its authority is written to `authorityFile`; nil for a new file among
        /// the temporary ones.
        case issued(authorityFile: String?)
    }

    package static let help = """
        Usage: token-broker-provider [options]

        An OAuth 2.0 authorization server for development and tests. Anyone can log in with any name, and the
        state is in memory only. Do not make it reachable by others.

          --listen ADDRESS:PORT            where to listen; port 0 means a free port (127.0.0.1:8181)
          --public-base-url URL            the URL for clients and browsers, and the issuer's name
                                           (http:// or https:// and the listen address)
          --https                          encrypt connections, by a certificate for localhost,
                                           127.0.0.1, ::1 and the hosts of the two options above
                                           that is issued at each start. Clients have to trust its
                                           authority, whose file the first line names (ca_file)
          --ca-file FILE                   where --https writes the authority, replacing the file (a new
                                           file in TMPDIR or /tmp, removed at the end)
          --certificate FILE               with --https: use this certificate, followed by those that
                                           lead to its root (PEM)
          --key FILE                       the certificate's key (PEM)
          --profile NAME                   tidal, rfc, duckduckgo or authgear: paths, names and errors
                                           of TIDAL, of the RFCs, of DuckDuckGo's Auth v2 or of
                                           Authgear (tidal). Or one of the broker's profiles, such as
                                           slack or google: the other side of what its document says.
                                           The first line then names the members of a tenant (tenant).
                                           list prints the names
          --parameter NAME=VALUE           with one of the broker's profiles: what stands for {NAME} in
                                           its addresses; may be repeated (its default or example)
          --client ID[:SECRET]             a client; may be repeated (development, without a secret)
          --redirect-uri URI               a redirect URI of every client; may be repeated (any)
          --client-redirect-uri ID=URI     a redirect URI of one client; may be repeated
          --x-app2app-enabled ID           sessions of this client let other apps in, with the authgear
                                           profile, as the next five; may be repeated
          --x-app2app-insecure-device-key-binding-enabled ID
                                           they may get a device key after the login; may be repeated
          --x-app2app-biometric-protection-required ID
                                           they let apps in by a biometric key only; may be repeated
          --refresh-token-rotation-enabled ID
                                           refresh tokens of this client only are rotated; may be
                                           repeated (as --rotation says)
          --android-app PACKAGE=FINGERPRINT
                                           an app in assetlinks.json; may be repeated, also for the
                                           certificates of one app
          --apple-app ID                   an app in apple-app-site-association; may be repeated
          --no-rate-limits                 accept any number of token requests with the authgear
                                           profile
          --rotation none|rotate           whether each refresh issues a new refresh token
                                           (none, duckduckgo rotate)
          --grace SECONDS                  how long a rotated refresh token stays valid
                                           (0, duckduckgo 3600)
          --access-token-lifetime SECONDS  lifetime of access tokens (tidal and duckduckgo 14400,
                                           rfc 3600)
          --refresh-token-lifetime SECONDS lifetime of refresh tokens (unlimited, duckduckgo 30 days)
          --access-tokens opaque|jwt       the form of access tokens; duckduckgo's are always signed
                                           (opaque)
          --signing-algorithm ALGORITHM    ES256, ES384, RS256, PS256 or EdDSA, for every signed
                                           token (ES256)
          --code-lifetime SECONDS          lifetime of authorization codes (60)
          --device-code-lifetime SECONDS   lifetime of device codes (tidal 300, rfc 600)
          --device-interval SECONDS        time between polls (tidal 2, rfc 5)
          --dead-refresh-token-status 400|401
                                           status of invalid_grant for a refresh token, with the
                                           tidal profile (400)
          --refresh-ends-access-tokens     a refresh ends the access tokens of its login, with the
                                           profiles tidal and rfc
          --pushed-requests off|allowed|required
                                           whether authorization requests may be pushed, with the rfc
                                           profile (off)
          --dpop off|allowed|required      whether token requests may prove a key, with the rfc profile
                                           (off)
          --dpop-nonce NONCE               the nonce that proofs must have (none)
          --no-refresh-tokens              logins issue no refresh token
          --no-issuer-announcement         the metadata does not announce iss in authorization responses
          --capacity TOKENS                the most tokens of each kind in memory; a quarter of this
                                           for sessions, a tenth for requests (200000)
          --help                           print this text

        When it is ready it prints one line of JSON with its address. SIGTERM and SIGINT stop it.

        Controls for tests; what is sent is JSON (Content-Type: application/json):

        \(ControlInterface.helpText)

        """

    /// - Parameter arguments: the arguments without the program's name.
    package init(arguments: [String]) throws(Mistake) {
        var arguments = arguments[...]
        var given: [String: [String]] = [:]
        while let name = arguments.popFirst() {
            if name == "--help" || name == "-h" {
                showsHelp = true
            } else if Self.switches.contains(name) {
                given[name, default: []].append("")
            } else if Self.valued.contains(name) {
                guard let value = arguments.popFirst() else { throw Mistake(description: "\(name) requires a value.") }
                given[name, default: []].append(value)
            } else {
                throw Mistake(description: "\(name) is not an option.")
            }
        }
        if let (name, _) = given.first(where: { $1.count > 1 && !Self.repeatable.contains($0) }) {
            throw Mistake(description: "\(name) is given twice.")
        }
        try apply(given)
    }

    private static let switches: Set<String> = [
        "--refresh-ends-access-tokens", "--no-refresh-tokens", "--no-issuer-announcement", "--https",
        "--no-rate-limits",
    ]
    private static let repeatable: Set<String> = [
        "--client", "--redirect-uri", "--client-redirect-uri", "--x-app2app-enabled",
        "--x-app2app-insecure-device-key-binding-enabled", "--x-app2app-biometric-protection-required",
        "--refresh-token-rotation-enabled", "--android-app", "--apple-app", "--parameter",
    ]
    private static let valued: Set<String> = repeatable.union([
        "--listen", "--public-base-url", "--profile", "--rotation", "--grace", "--access-token-lifetime",
        "--refresh-token-lifetime", "--code-lifetime", "--device-code-lifetime", "--device-interval",
        "--ca-file", "--certificate", "--key", "--dead-refresh-token-status", "--capacity", "--access-tokens",
        "--signing-algorithm", "--pushed-requests", "--dpop", "--dpop-nonce",
    ])

    private mutating func apply(_ given: [String: [String]]) throws(Mistake) {
        func value(_ name: String) -> String? { given[name]?.first }
        func seconds(_ name: String, from least: Int64 = 1) throws(Mistake) -> Duration? {
            guard let text = value(name) else { return nil }
            guard let number = Int64(text), (least...1_000_000_000).contains(number) else {
                throw Mistake(description: "\(name) must be whole seconds from \(least) to 1000000000.")
            }
            return .seconds(number)
        }
        func choice(_ name: String, _ choices: [String]) throws(Mistake) -> String? {
            guard let text = value(name) else { return nil }
            guard choices.contains(text) else {
                throw Mistake(description: "\(name) must be \(choices.joined(separator: " or ")).")
            }
            return text
        }

        if let text = value("--listen") {
            guard let address = Self.address(text) else {
                throw Mistake(
                    description: "--listen must be a numeric address and a port, such as 127.0.0.1:8181 or [::1]:0.")
            }
            listen = address
        }
        if let text = value("--public-base-url") {
            guard let url = BaseURL(text) else {
                throw Mistake(description: "--public-base-url must be an http or https URL without query and fragment.")
            }
            publicBaseURL = url
        }
        https = try Self.https(given)
        if value("--profile") == Self.list {
            listsProfiles = true
            return
        }
        let played = try Self.played(given)
        let redirectURIs = given["--redirect-uri"] ?? []
        var clients: [ProviderClient] = []
        for text in given["--client"] ?? ["development"] {
            let halves = text.split(separator: ":", maxSplits: 1, omittingEmptySubsequences: false).map(String.init)
            guard !halves[0].isEmpty, halves.last != "" else {
                throw Mistake(description: "--client must be an identifier, or an identifier, a colon and a secret.")
            }
            guard !clients.contains(where: { $0.id == halves[0] }) else {
                throw Mistake(description: "--client names \(halves[0]) twice.")
            }
            clients.append(
                ProviderClient(halves[0], secret: halves.count > 1 ? halves[1] : nil, redirectURIs: redirectURIs))
        }
        try Self.apply(given, to: &clients)
        let profile = value("--profile").flatMap { ProviderProfile(rawValue: $0) } ?? .tidal
        var configuration =
            played.map { ProviderConfiguration(playing: $0, clients: clients) }
            ?? ProviderConfiguration(profile: profile, clients: clients)
        if given["--no-refresh-tokens"] != nil { configuration.issuesRefreshTokens = false }
        configuration.limitAccessTokens()
        let grace = try seconds("--grace", from: 0)
        switch (try choice("--rotation", ["none", "rotate"]), configuration.rotation, grace) {
        case ("none", _, nil): configuration.rotation = .none
        case ("rotate", .none, _): configuration.rotation = .rotate(grace: grace ?? .zero)
        case (nil, .none, nil), (_, .rotate, nil): break
        case (nil, .rotate, let grace?), ("rotate", .rotate, let grace?): configuration.rotation = .rotate(grace: grace)
        default:
            throw Mistake(description: "--grace requires --rotation rotate.")
        }
        if let lifetime = try seconds("--access-token-lifetime") { configuration.accessTokenLifetime = lifetime }
        if let lifetime = try seconds("--refresh-token-lifetime") { configuration.refreshTokenLifetime = lifetime }
        if let text = try choice("--access-tokens", AccessTokenFormat.allCases.map(\.rawValue)) {
            configuration.accessTokenFormat = AccessTokenFormat(rawValue: text) ?? .opaque
        }
        if let text = try choice("--signing-algorithm", SignatureAlgorithm.allCases.map(\.rawValue)) {
            configuration.signingAlgorithm = SignatureAlgorithm(rawValue: text) ?? .es256
        }
        for (name, member) in [("--pushed-requests", \ProviderConfiguration.pushedRequests), ("--dpop", \.boundTokens)]
        {
            let text = try choice(name, OptionalPart.allCases.map(\.rawValue))
            configuration[keyPath: member] = text.flatMap(OptionalPart.init) ?? .off
        }
        configuration.proofNonce = value("--dpop-nonce")
        if let lifetime = try seconds("--code-lifetime") { configuration.authorizationCodeLifetime = lifetime }
        if let lifetime = try seconds("--device-code-lifetime") { configuration.deviceCodeLifetime = lifetime }
        if let interval = try seconds("--device-interval") { configuration.deviceInterval = interval }
        if try choice("--dead-refresh-token-status", ["400", "401"]) == "401" {
            configuration.deadRefreshTokenStatus = 401
        }
        if let text = value("--capacity") {
            guard let number = Int(text), (1000...100_000_000).contains(number) else {
                throw Mistake(description: "--capacity must be a whole number from 1000 to 100000000.")
            }
            configuration.capacity = number
        }
        configuration.limitsTokenRequests = given["--no-rate-limits"] == nil
        configuration.appleApps = given["--apple-app"] ?? []
        for text in given["--android-app"] ?? [] {
            let (name, fingerprint) = try Self.pair(text, "--android-app must be a package, = and a fingerprint.")
            if let index = configuration.androidApps.firstIndex(where: { $0.packageName == name }) {
                configuration.androidApps[index].fingerprints.append(fingerprint)
            } else {
                configuration.androidApps.append(AndroidApp(packageName: name, fingerprints: [fingerprint]))
            }
        }
        if given["--refresh-ends-access-tokens"] != nil { configuration.refreshEndsAccessTokens = true }
        if given["--no-issuer-announcement"] != nil { configuration.announcesResponseIssuer = false }
        self.configuration = configuration
    }

    /// The value of `--profile` that names the profiles.
    private static let list = "list"

    /// The names that `--profile` takes, in their order.
    package static var profiles: [String] {
        (ProviderProfile.allCases.map(\.rawValue) + ProfileTranslation.names).sorted()
    }

    /// The profile of the broker's that is played; nil for one of the provider's own.
    private static func played(_ given: [String: [String]]) throws(Mistake) -> ProfileTranslation? {
        var parameters: [WireText: WireText] = [:]
        for text in given["--parameter"] ?? [] {
            let (name, value) = try pair(text, "--parameter must be a parameter of the profile, = and its value.")
            parameters[WireText(name)] = WireText(value)
        }
        let name = given["--profile"]?.first
        guard let name, ProviderProfile(rawValue: name) == nil else {
            if parameters.isEmpty { return nil }
            throw Mistake(description: "--parameter requires --profile with a profile that has parameters.")
        }
        guard let played = ProfileTranslation(name, parameters: parameters) else {
            throw Mistake(description: "--profile must be \(profiles.joined(separator: ", ")), or \(list).")
        }
        if let other = parameters.keys.sorted().first(where: { !played.parameterNames.contains($0.text) }) {
            let names = played.parameterNames
            throw Mistake(
                description: "--parameter names \(other.text); the profile \(name) has "
                    + (names.isEmpty ? "no parameters." : "\(names.joined(separator: ", ")) only."))
        }
        for (name, value) in parameters {
            if let fault = AddressTemplate.fault(value) {
                throw Mistake(description: "--parameter \(name.text) \(fault).")
            }
        }
        return played
    }

    /// Applies the options that are about one client each.
    private static func apply(_ given: [String: [String]], to clients: inout [ProviderClient]) throws(Mistake) {
        func index(_ id: String, _ name: String) throws(Mistake) -> Int {
            guard let index = clients.firstIndex(where: { $0.id == id }) else {
                throw Mistake(description: "\(name) names \(id), which is not a client.")
            }
            return index
        }
        for text in given["--client-redirect-uri"] ?? [] {
            let (id, uri) = try pair(text, "--client-redirect-uri must be a client's identifier, = and a URI.")
            clients[try index(id, "--client-redirect-uri")].redirectURIs.append(uri)
        }
        for (name, member) in [
            ("--x-app2app-enabled", \ProviderClient.allowsAppToApp),
            ("--x-app2app-insecure-device-key-binding-enabled", \.bindsInsecurely),
            ("--x-app2app-biometric-protection-required", \.requiresBiometricProtection),
        ] {
            for id in given[name] ?? [] { clients[try index(id, name)][keyPath: member] = true }
        }
        for id in given["--refresh-token-rotation-enabled"] ?? [] {
            clients[try index(id, "--refresh-token-rotation-enabled")].rotatesRefreshTokens = true
        }
    }

    /// What is before and after the first `=`. Neither is empty.
    private static func pair(_ text: String, _ mistake: String) throws(Mistake) -> (String, String) {
        let halves = text.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false).map(String.init)
        guard halves.count == 2, !halves[0].isEmpty, !halves[1].isEmpty else { throw Mistake(description: mistake) }
        return (halves[0], halves[1])
    }

    private static func https(_ given: [String: [String]]) throws(Mistake) -> HTTPS? {
        let files = [given["--certificate"]?.first, given["--key"]?.first]
        let authorityFile = given["--ca-file"]?.first
        guard given["--https"] != nil else {
            if files != [nil, nil] || authorityFile != nil {
                throw Mistake(description: "--certificate, --key and --ca-file require --https.")
            }
            return nil
        }
        switch (files[0], files[1]) {
        case (nil, nil): return .issued(authorityFile: authorityFile)
        case (let certificate?, let key?):
            if authorityFile != nil {
                throw Mistake(
                    description: "--ca-file is for a certificate of the program's own, without --certificate.")
            }
            return .files(certificate: certificate, key: key)
        default: throw Mistake(description: "--certificate and --key require each other.")
        }
    }

    /// Reads `127.0.0.1:8181` or `[::1]:8181`.
    private static func address(_ text: String) -> SocketAddress? {
        guard let colon = text.lastIndex(of: ":"), let port = UInt16(text[text.index(after: colon)...]),
            text[text.index(after: colon)...].utf8.allSatisfy({ $0 >= 0x30 && $0 <= 0x39 })
        else { return nil }
        var host = text[..<colon]
        if host.hasPrefix("["), host.hasSuffix("]") {
            host = host.dropFirst().dropLast()
            guard host.contains(":") else { return nil }
        } else if host.contains(":") {
            return nil
        }
        return SocketAddress(numericHost: String(host), port: port)
    }
}
