internal import Glibc
internal import Reactor

/// How the way to a database is protected, from the weakest kind to the strongest.
package enum PostgresLink: Int, Sendable, CaseIterable, Comparable {
    /// To another host without TLS, or with TLS only if the network lets it through (`sslmode` disable, allow, prefer).
    case clear
    /// TLS to a server whose certificate is not looked at (`require` without root certificates).
    case unverified
    /// TLS to a server whose certificate is of the right authority, whatever host it names (`verify-ca`).
    case verifiedAuthority
    /// TLS to a server whose certificate is of the right authority and names the host (`verify-full`).
    case verifiedHost
    /// Encrypted and authenticated by Kerberos (`gssencmode=require`).
    case kerberos
    /// A Unix-domain socket or a loopback address.
    case local

    package static func < (left: PostgresLink, right: PostgresLink) -> Bool { left.rawValue < right.rawValue }

    /// Whether the other end has proved to be the database before it is told anything, or needs not.
    package var isAuthenticated: Bool { self >= .verifiedAuthority }

    package var description: String {
        switch self {
        case .clear: "clear"
        case .unverified: "tls unverified"
        case .verifiedAuthority: "tls verify-ca"
        case .verifiedHost: "tls verify-full"
        case .kerberos: "gss"
        case .local: "local"
        }
    }
}

/// What the connection string and libpq's environment say about protection, and what becomes of it for each host.
///
/// libpq by itself would take any server for the database (`sslmode=prefer`), and answer it when it asks for the password
/// in clear. Here a host that is not local is held to `verify-full` unless `sslmode` says otherwise, and where `sslmode`
/// leaves the other end unproven, the password is given away in no form:
///
/// | `sslmode` | to a host that is not local |
/// |---|---|
/// | none, `verify-full` | TLS; the certificate must name the host |
/// | `verify-ca` | TLS; the certificate must be of the authority in `sslrootcert` |
/// | `require` | TLS, and SCRAM with channel binding, which proves that the server knows the password; or `channel_binding` as given, or `verify-ca` where there are root certificates, as with libpq |
/// | `prefer`, `allow` | as `require` does, or, after or before that, as `disable` does |
/// | `disable` | no TLS, and SCRAM only; see `AuthenticationRelay` |
///
/// Root certificates are those of `sslrootcert` or PGSSLROOTCERT, else of `~/.postgresql/root.crt`, as with libpq, else the
/// system's. `sslrootcert=system` means the system's, which libpq itself knows from version 16 on.
struct LinkProtection: Sendable {
    /// libpq's `sslmode`.
    enum Mode: String, Sendable {
        case disable
        case allow
        case prefer
        case require
        case verifyAuthority = "verify-ca"
        case verifyHost = "verify-full"
    }

    /// The settings of one attempt to connect.
    struct Attempt: Sendable, Equatable {
        var settings: [String: String] = [:]
        /// Whether requests for anything but SCRAM are to be kept from libpq.
        var allowsSCRAMOnly = false
    }

    /// Nil where nothing says.
    private let mode: Mode?
    private let givenRoots: String?
    /// The system's, where those are to be used.
    private let systemRoots: String?
    private let givesChannelBinding: Bool
    private let requiresKerberos: Bool

    /// Where systems keep their root certificates in one file: Debian, Red Hat, Alpine.
    private static let systemRootFiles = [
        "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem",
    ]

    /// Takes what is about protection out of the connection string's settings.
    /// - Throws: `.misconfigured`.
    init(
        _ settings: inout [String: String], environment: [String: String] = ProcessEnvironment.variables
    ) throws(PostgresError) {
        func variable(_ name: String) -> String? { environment[name].flatMap { $0.isEmpty ? nil : $0 } }
        let requirement = variable("PGREQUIRESSL").map { $0.hasPrefix("1") ? "require" : nil } ?? nil
        let root = settings.removeValue(forKey: "sslrootcert") ?? variable("PGSSLROOTCERT")
        let modeText = settings.removeValue(forKey: "sslmode") ?? variable("PGSSLMODE") ?? requirement
        mode = modeText.flatMap(Mode.init)
        if modeText != nil, mode == nil {
            throw .misconfigured("sslmode must be disable, allow, prefer, require, verify-ca or verify-full")
        }
        givesChannelBinding = settings["channel_binding"] != nil || variable("PGCHANNELBINDING") != nil
        requiresKerberos = settings["gssencmode"] == "require"

        givenRoots = root == "system" ? nil : root
        let usesSystemRoots =
            root == "system" || root == nil && (mode == nil || mode == .verifyHost) && !Self.hasUserRoots
        // As OpenSSL does for other connections, a variable comes first.
        let files = [variable("SSL_CERT_FILE")].compactMap { $0 } + Self.systemRootFiles
        systemRoots = usesSystemRoots ? files.first(where: SmallFile.isReadable) : nil
        if root == "system" {
            if mode != nil, mode != .verifyHost {
                throw .misconfigured("sslrootcert=system needs sslmode=verify-full: any host has such a certificate")
            }
            if systemRoots == nil { throw .misconfigured("there are no root certificates on this system") }
        }
    }

    func link(to target: PostgresConfiguration.Target) -> PostgresLink {
        if requiresKerberos { return .kerberos }
        switch mode {
        case .verifyHost: return .verifiedHost
        case .verifyAuthority: return .verifiedAuthority
        case nil: return target.isLocal ? .local : .verifiedHost
        case .require:
            if target.isLocal { return .local }
            return verifiesAuthorityIfRequired ? .verifiedAuthority : .unverified
        case .disable, .allow, .prefer: return target.isLocal ? .local : .clear
        }
    }

    /// The attempts to make at one host, in order.
    func attempts(at target: PostgresConfiguration.Target) -> [Attempt] {
        // What is given is libpq's to obey.
        if target.isLocal || requiresKerberos { return [Attempt(settings: settings(mode))] }
        let clear = Attempt(
            // Encryption by Kerberos that may be left out protects nothing, and would begin with a message of its own.
            settings: ["sslmode": Mode.disable.rawValue, "gssencmode": "disable"], allowsSCRAMOnly: true)
        switch mode {
        case nil, .verifyHost: return [Attempt(settings: settings(.verifyHost))]
        case .verifyAuthority: return [Attempt(settings: settings(.verifyAuthority))]
        case .require: return [encrypted(bindsChannel: !givesChannelBinding)]
        case .prefer: return [encrypted(bindsChannel: true), clear]
        case .allow: return [clear, encrypted(bindsChannel: true)]
        case .disable: return [clear]
        }
    }

    /// TLS to a server that proves by SCRAM, if not by a certificate, who it is.
    private func encrypted(bindsChannel: Bool) -> Attempt {
        var settings = settings(.require)
        if bindsChannel, !verifiesAuthorityIfRequired { settings["channel_binding"] = "require" }
        return Attempt(settings: settings)
    }

    private func settings(_ mode: Mode?) -> [String: String] {
        var settings: [String: String] = [:]
        settings["sslmode"] = mode?.rawValue
        // Left out, libpq looks where it does by itself, and says what is missing.
        settings["sslrootcert"] = givenRoots ?? (mode == .verifyHost ? systemRoots : nil)
        return settings
    }

    /// libpq verifies the chain under `require`, too, where it finds root certificates.
    private var verifiesAuthorityIfRequired: Bool { givenRoots != nil || Self.hasUserRoots }

    /// Whether there is a `~/.postgresql/root.crt`, which libpq takes by itself.
    private static let hasUserRoots: Bool = {
        var entry = unsafe passwd()
        var found: UnsafeMutablePointer<passwd>?
        var buffer = [CChar](repeating: 0, count: 16_384)
        guard unsafe getpwuid_r(geteuid(), &entry, &buffer, buffer.count, &found) == 0, unsafe found != nil,
            let home = unsafe entry.pw_dir.map({ unsafe String(cString: $0) })
        else { return false }
        return SmallFile.isReadable(home + "/.postgresql/root.crt")
    }()
}
