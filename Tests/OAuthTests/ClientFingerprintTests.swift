import Cryptography
import OAuth
import Testing

@Suite struct `Client fingerprint` {
    @Test func `is equal for an equal configuration, whatever the order of scopes`() {
        #expect(
            Sample.client(uniqueKey: "k", scopes: ["a", "b"]).fingerprint
                == Sample.client(uniqueKey: "k", scopes: ["b", "a", "a"]).fingerprint)
    }

    @Test(arguments: [
        Sample.client(id: "client-2"), Sample.client(secret: "secret-2"), Sample.client(secret: nil),
        Sample.client(uniqueKey: "k"), Sample.client(scopes: ["a"]), Sample.client(scopes: []),
    ])
    func `differs where any of the four parameters does`(other: ClientConfiguration) {
        #expect(Sample.client().fingerprint != other.fingerprint)
    }

    @Test func `holds the secret only as its digest`() {
        let fingerprint = Sample.client(secret: "abc").fingerprint
        #expect(
            fingerprint.clientSecretDigest.map(Hex.encode)
                == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    }

    @Test func `an empty unique key counts as none`() {
        #expect(Sample.client(uniqueKey: "").fingerprint == Sample.client(uniqueKey: nil).fingerprint)
    }

    @Test func `names the four members as the contract does`() {
        #expect(
            ClientFingerprint.Member.allCases.map(\.rawValue) == [
                "client_id", "client_secret", "client_unique_key", "scopes",
            ])
    }

    @Test(
        arguments: [
            (Sample.client(), []), (Sample.client(scopes: ["a", "b", "a"]), []), (Sample.client(uniqueKey: ""), []),
            (Sample.client(id: "client-2"), [.clientID]), (Sample.client(id: "CLIENT-1"), [.clientID]),
            (Sample.client(secret: "secret-2"), [.clientSecret]), (Sample.client(secret: nil), [.clientSecret]),
            (Sample.client(secret: ""), [.clientSecret]), (Sample.client(uniqueKey: "k"), [.clientUniqueKey]),
            (Sample.client(scopes: ["a"]), [.scopes]), (Sample.client(scopes: ["a", "b", "c"]), [.scopes]),
            (Sample.client(scopes: []), [.scopes]),
            (Sample.client(id: "client-2", scopes: []), [.clientID, .scopes]),
            (
                Sample.client(id: "client-2", secret: nil, uniqueKey: "k", scopes: ["c"]),
                [.clientID, .clientSecret, .clientUniqueKey, .scopes]
            ),
        ] as [(ClientConfiguration, [ClientFingerprint.Member])])
    func `lists the members that differ, in either direction`(
        other: ClientConfiguration, members: [ClientFingerprint.Member]
    ) {
        let (left, right) = (Sample.client().fingerprint, other.fingerprint)
        #expect(left.differences(from: right) == members)
        #expect(right.differences(from: left) == members)
        #expect((left == right) == members.isEmpty)
    }
}
