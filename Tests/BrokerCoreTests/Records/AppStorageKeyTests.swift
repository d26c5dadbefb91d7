import Cryptography
import ExternalText
import OAuth
import Testing

@testable import BrokerCore

/// The storage keys that are made of users' identifiers.
@Suite struct `Storage keys of users of apps` {
    private static func digested(_ userID: WireText) -> String {
        "u-" + Base64URL.encode(SHA256.digest(Array(userID.utf8)))
    }

    /// Identifiers that begin like a made key, one character shorter, as long and one longer than it is.
    private static let lookalikes = (42...44).map { WireText("u-" + String(repeating: "a", count: $0)) }

    @Test(
        arguments: [
            ("ada", false), ("42", false), ("ann maria", true), ("~", true), (lookalikes[0], false),
            (lookalikes[1], true),
            (lookalikes[2], false), (WireText(digested("ann maria")), true),
        ] as [(WireText, Bool)])
    func `are the identifier, or made of its digest where another user's could be the same`(
        userID: WireText, isDigested: Bool
    ) {
        let expected = isDigested ? Self.digested(userID) : userID.text
        #expect(AppLogin.storageKey(of: userID)?.description == expected)
    }
}
