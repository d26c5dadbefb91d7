import ExternalText
import OAuth
import Testing

@Suite struct `The provider that granted credentials` {
    struct Row: Sendable, CustomTestStringConvertible {
        /// Issuer and token endpoint.
        let granted: (WireText?, WireText?)?
        let present: (WireText?, WireText?)
        var isNamed = false
        var previousIssuers: [WireText] = []
        var previousTokenEndpoints: [WireText] = []
        let difference: AcceptedProviders.Difference?

        var testDescription: String {
            "\(String(describing: granted)), now \(present), before \(previousIssuers) \(previousTokenEndpoints)"
        }
    }

    static let rows: [Row] = [
        // Credentials that an earlier build stored count as granted by the configured provider.
        Row(granted: nil, present: ("i", "t"), difference: nil),
        Row(granted: nil, present: ("i", nil), difference: nil),
        Row(granted: nil, present: (nil, "t"), difference: nil),
        // One issuer is one provider, whatever its token endpoint.
        Row(granted: ("i", "t"), present: ("i", "t"), difference: nil),
        Row(granted: ("i", "t"), present: ("i", "u"), difference: nil),
        Row(granted: ("i", "t"), present: ("i", nil), difference: nil),
        Row(granted: ("i", nil), present: ("i", "t"), difference: nil),
        Row(granted: ("i", nil), present: ("i", nil), difference: nil),
        // An endpoint that an operator has named may be a mistake.
        Row(granted: ("i", "t"), present: ("i", "u"), isNamed: true, difference: .tokenEndpoint),
        Row(granted: ("i", "t"), present: ("i", "t"), isNamed: true, difference: nil),
        Row(granted: ("i", nil), present: ("i", "u"), isNamed: true, difference: nil),
        Row(
            granted: ("i", "t"), present: ("i", "u"), isNamed: true, previousTokenEndpoints: ["s", "t"], difference: nil
        ),
        Row(
            granted: ("i", "t"), present: ("i", "u"), isNamed: true, previousIssuers: ["i"],
            difference: .tokenEndpoint),
        // Two issuers are two providers, even with the same token endpoint.
        Row(granted: ("i", "t"), present: ("j", "t"), difference: .issuer),
        Row(granted: ("i", "t"), present: ("j", "u"), difference: .issuer),
        Row(granted: ("i", "t"), present: ("j", nil), difference: .issuer),
        Row(granted: ("i", nil), present: ("j", "t"), difference: .issuer),
        // If one side has no issuer, the token endpoints are compared.
        Row(granted: (nil, "t"), present: (nil, "t"), difference: nil),
        Row(granted: (nil, "t"), present: (nil, "u"), difference: .tokenEndpoint),
        Row(granted: (nil, "t"), present: ("i", "t"), difference: nil),
        Row(granted: (nil, "t"), present: ("i", "u"), difference: .tokenEndpoint),
        Row(granted: ("i", "t"), present: (nil, "t"), difference: nil),
        Row(granted: ("i", "t"), present: (nil, "u"), difference: .tokenEndpoint),
        // The token endpoint is not known yet. It will be compared before any token is sent to it.
        Row(granted: (nil, "t"), present: ("i", nil), difference: nil),
        // The credentials have no token endpoint, so nothing shows that the provider is the same.
        Row(granted: ("i", nil), present: (nil, "t"), difference: .issuer),
        // Texts are compared as bytes, without the rules of URLs or Unicode.
        Row(granted: ("https://p.example", "t"), present: ("https://p.example/", "t"), difference: .issuer),
        Row(granted: ("https://p.example", "t"), present: ("https://P.example", "t"), difference: .issuer),
        Row(
            granted: (nil, "https://p.example/t"), present: (nil, "https://p.example:443/t"),
            difference: .tokenEndpoint),
        Row(
            granted: (nil, "https://p.example/\u{e9}"), present: (nil, "https://p.example/e\u{301}"),
            difference: .tokenEndpoint),
        // Addresses that an operator has declared.
        Row(granted: ("i", "t"), present: ("j", "u"), previousIssuers: ["h", "i"], difference: nil),
        Row(granted: ("i", nil), present: ("j", nil), previousIssuers: ["i"], difference: nil),
        Row(granted: ("i", nil), present: (nil, "t"), previousIssuers: ["i"], difference: nil),
        Row(granted: ("i", "t"), present: (nil, "u"), previousIssuers: ["i"], difference: nil),
        Row(
            granted: ("i", "t"), present: ("j", "u"), previousIssuers: ["j", "h", "t", "I", "i/"], difference: .issuer),
        Row(granted: (nil, "t"), present: (nil, "u"), previousIssuers: ["i", "t"], difference: .tokenEndpoint),
        Row(granted: (nil, "t"), present: (nil, "u"), previousTokenEndpoints: ["s", "t"], difference: nil),
        Row(granted: ("i", "t"), present: (nil, "u"), previousTokenEndpoints: ["t"], difference: nil),
        Row(granted: ("i", "t"), present: ("j", "u"), previousTokenEndpoints: ["t"], difference: nil),
        Row(
            granted: (nil, "t"), present: (nil, "u"), previousTokenEndpoints: ["u", "T", "t/"],
            difference: .tokenEndpoint),
        Row(granted: ("i", nil), present: ("j", "u"), previousTokenEndpoints: ["i", "u"], difference: .issuer),
    ]

    @Test(arguments: rows)
    func `is recognised by its issuer, otherwise by its token endpoint, or by a declared address`(row: Row) throws {
        let granted = try row.granted.map { try #require(GrantingProvider(issuer: $0.0, tokenEndpoint: $0.1)) }
        let accepted = AcceptedProviders(
            issuer: row.present.0, tokenEndpoint: row.present.1, namesTokenEndpoint: row.isNamed,
            previousIssuers: row.previousIssuers,
            previousTokenEndpoints: row.previousTokenEndpoints)
        #expect(accepted.difference(from: granted) == row.difference)
    }

    @Test func `credentials of the configured provider are accepted`() throws {
        for (issuer, endpoint) in [("i", "t"), ("i", nil), (nil, "t")] as [(WireText?, WireText?)] {
            let accepted = AcceptedProviders(issuer: issuer, tokenEndpoint: endpoint)
            let present = try #require(accepted.present)
            #expect(accepted.difference(from: present) == nil)
        }
        #expect(AcceptedProviders(issuer: nil, tokenEndpoint: nil).present == nil)
    }
}
