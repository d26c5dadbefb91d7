import ExternalText
import HTTPSClient
import JSON
import OAuth
import Reactor

extension TenantConfiguration {
    /// What the rules of members need to know of the object that is read.
    struct Reading: Sendable {
        /// Which addresses a configuration may name.
        let targets: TargetPolicy
        /// Whether an earlier build has stored it.
        let isStored: Bool
    }

    /// What is wrong with an address that the broker itself will call or send a browser to, as the end of a sentence, or nil.
    /// - Parameter isBase: whether paths are appended to it, so that it must not have a query. An issuer must not have one
    ///   either (RFC 8414 §2).
    static func addressFault(_ text: WireText, _ targets: TargetPolicy, isBase: Bool) -> String? {
        guard let url = URLTarget(text.text) else {
            return refusedPortFault(text)
                ?? "must be an absolute \(targets.allowsHTTP ? "http or https" : "https") URL without user information and "
                + "fragment"
        }
        if url.scheme == .http, !targets.allowsHTTP {
            return "must be an https URL"
                + (LocalNames.isLoopback(url.host)
                    ? "; an http one of this machine takes TOKEN_BROKER_ALLOW_INSECURE_PROVIDERS=true, for development only"
                    : "")
        }
        return isBase && text.contains("?") ? "must not have a query" : nil
    }

    static func refusedPortFault(_ text: WireText) -> String? {
        URLTarget.refusedPort(of: text.text).map {
            "must not have the port \($0): of the ports below 1024 only 80 and 443 are called"
        }
    }

    /// What is wrong with a scope, as the end of a sentence; nil for one that can be sent.
    static func scopeFault(_ text: WireText) -> String? {
        ScopeSet([text]) == nil ? "must be one scope: visible ASCII without space, quote or backslash" : nil
    }
}

/// In bytes.
private let longestAddress = 2048

extension MemberRule where Value == String, Context == TenantConfiguration.Reading {
    /// An address that the broker itself will call or send a browser to.
    static func address(isBase: Bool = false) -> MemberRule {
        .text(limit: longestAddress) { TenantConfiguration.addressFault($0, $1.targets, isBase: isBase) }
    }
}

extension MemberRule where Value == [String], Context == TenantConfiguration.Reading {
    /// Up to 10 such addresses.
    static func addresses(areBases: Bool = false) -> MemberRule {
        .texts(atMost: 10) { text, reading in
            text.count > longestAddress
                ? "must not be longer than \(longestAddress) bytes"
                : TenantConfiguration.addressFault(text, reading.targets, isBase: areBases)
        }
    }
}

extension MemberRule where Value == ScopeSet {
    static var scopes: MemberRule {
        MemberRule { reader, name, _ in
            reader.strings(name, atMost: ScopeSet.most, check: TenantConfiguration.scopeFault)
                .flatMap { ScopeSet($0) }
        } write: { scopes, json in
            json.array { json in for scope in scopes.values { json.string(scope) } }
        }
    }
}
