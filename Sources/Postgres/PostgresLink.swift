import Glibc
import Reactor

/// How the connection to a database is protected, from the weakest kind to the strongest.
package enum PostgresLink: Int, Sendable, CaseIterable, Comparable {
    /// To another host without TLS, or with TLS that an attacker in the network can prevent (`sslmode` disable, allow,
    /// prefer).
    case clear
    /// TLS to a server whose certificate is not checked (`require` without root certificates).
    case unverified
    /// TLS to a server with a certificate of the right authority for any host (`verify-ca`).
    case verifiedAuthority
    /// TLS to a server with a certificate of the right authority that names the host (`verify-full`).
    case verifiedHost
    /// Encrypted and authenticated by Kerberos (`gssencmode=require`).
    case kerberos
    /// A Unix-domain socket or a loopback address.
    case local

    package static func < (left: PostgresLink, right: PostgresLink) -> Bool { left.rawValue < right.rawValue }

    /// Whether the server has proved its identity before the first statement is sent, or is local.
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

/// The protection that the connection string and libpq's environment ask for, and the resulting settings for each host.
///
/// By default (`sslmode=prefer`) libpq accepts any server, and sends the password in clear to a server that asks for
/// it. Here a host that is not local must satisfy `verify-full` unless `sslmode` says otherwise. Where `sslmode` leaves
/// the server's identity unproven, no answer to the server reveals the password:
///
/// | `sslmode` | to a host that is not local |
/// |---|---|
/// | none, `verify-full` | TLS; the certificate must name the host |
/// | `verify-ca` | TLS; the certificate must be of the authority in `sslrootcert` |
/// | `require` | TLS, and SCRAM with channel binding, which proves that the server knows the password. A given `channel_binding` takes precedence. With root certificates, as `verify-ca`, like libpq |
/// | `prefer`, `allow` | an attempt as `require` and one as `disable`: `require` first with `prefer`, last with `allow` |
/// | `disable` | no TLS, and SCRAM only; see `AuthenticationRelay` |
///
/// Root certificates come from `sslrootcert` or PGSSLROOTCERT, else from `~/.postgresql/root.crt`, as with libpq, else
/// from the system. `sslrootcert=system` means those of the system, also with libpq before version 16.
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
        /// Whether authentication requests other than for SCRAM must not reach libpq.
        var allowsSCRAMOnly = false
    }

    /// Nil when no setting names a mode.
    private let mode: Mode?
    private let givenRoots: String?
    /// The file with the system's root certificates; nil when those are not used.
    private let systemRoots: String?
    private let givesChannelBinding: Bool
    private let requiresKerberos: Bool

    /// The files with the root certificates of Debian, Red Hat and Alpine.
    private static let systemRootFiles = [
        "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem",
    ]

    /// Removes `sslmode` and `sslrootcert` from the settings of the connection string.
    /// - Throws: `.misconfigured`.
    init(
        takenFrom settings: inout [String: String], environment: [String: String] = ProcessEnvironment.variables
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
        // SSL_CERT_FILE takes precedence, as it does in OpenSSL.
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
        // libpq obeys the given settings by itself.
        if target.isLocal || requiresKerberos { return [Attempt(settings: settings(mode))] }
        let clear = Attempt(
            // Optional encryption by Kerberos protects nothing, and begins with a message that the relay does not know.
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

    /// TLS to a server that proves its identity by SCRAM if not by a certificate.
    private func encrypted(bindsChannel: Bool) -> Attempt {
        var settings = settings(.require)
        if bindsChannel, !verifiesAuthorityIfRequired { settings["channel_binding"] = "require" }
        return Attempt(settings: settings)
    }

    private func settings(_ mode: Mode?) -> [String: String] {
        var settings: [String: String] = [:]
        settings["sslmode"] = mode?.rawValue
        // Without this setting libpq looks at its default place, and reports a missing file.
        settings["sslrootcert"] = givenRoots ?? (mode == .verifyHost ? systemRoots : nil)
        return settings
    }

    /// With root certificates libpq verifies the chain under `require` as well.
    private var verifiesAuthorityIfRequired: Bool { givenRoots != nil || Self.hasUserRoots }

    /// Whether `~/.postgresql/root.crt` exists, which libpq reads by default.
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
