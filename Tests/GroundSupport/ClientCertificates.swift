/// Certificates of clients, good and bad, made by the `openssl` command once for each run of the tests.
///
/// Every one has a P-256 key, is for clients, is valid now, is issued by `authority`, and names `service.example` as a DNS
/// name, except in what its name says.
package struct ClientCertificates: Sendable {
    package enum Name: String, Sendable, CaseIterable {
        case dns
        /// `Service.Example`
        case upperCase
        /// `spiffe://example.org/ns/shop/sa/cart` as a URI, and no DNS name.
        case spiffe
        /// That URI behind the DNS name.
        case spiffeAndDNS
        /// Two such URIs, and the DNS name.
        case twoSPIFFE
        /// That URI, one with another scheme, and the DNS name.
        case spiffeAndURI
        /// That URI with an upper case scheme, and the DNS name.
        case upperCaseScheme
        /// A URI with another scheme, and the DNS name.
        case otherURI
        /// The DNS names `n1.example` to `n17.example`.
        case many
        /// `*.example`
        case wildcard
        /// `service.example`, a NUL, and `.evil` as one DNS name.
        case nulInName
        /// A DNS name with an octet above 127.
        case notASCII
        /// `service.example` as common name, and no alternative name.
        case commonNameOnly
        /// For servers only.
        case serverPurpose
        case expired
        /// Issued by `otherAuthority`.
        case wrongAuthority
        /// Under three intermediate authorities.
        case deep
        /// Under four intermediate authorities.
        case tooDeep
    }

    package let directory: String

    /// Made on first use. A process that cannot make them cannot test TLS, so it ends.
    package static let shared: ClientCertificates = {
        do {
            return try ClientCertificates()
        } catch {
            fatalError("no test certificates: \(error)")
        }
    }()

    private init() throws {
        // Is removed with the others.
        directory = TLSTestCertificates.shared.directory + "/clients"
        let process = try DialogueProcess(["sh", "-c", Self.script, "sh", directory])
        let last = try process.readLine()
        if last != "done" {
            throw DialogueProcess.Failure(description: "openssl: \(last ?? "no output"); see \(directory)/log")
        }
    }

    /// The file with the authority that a server is to trust.
    package var authority: String { "\(directory)/authority.crt" }
    /// The file with another authority.
    package var otherAuthority: String { "\(directory)/stranger.crt" }
    /// The file with the intermediate authority that has issued `deep`.
    package var intermediateAuthority: String { "\(directory)/third.crt" }

    /// What a client shows: its certificate and what leads to the authority.
    package func chain(_ name: Name) -> String { "\(directory)/\(name.rawValue).pem" }

    package func key(_ name: Name) -> String { "\(directory)/\(name.rawValue).key" }

    private static let script =
        TLSTestCertificates.issuing + #"""
            client='basicConstraints=critical,CA:FALSE
            keyUsage=critical,digitalSignature
            extendedKeyUsage=clientAuth'

            # leaf <name> <issuer> <alternative names>
            leaf() {
                issue "$1" "$2" "$1" "$client
            subjectAltName=$3"
                cat "$1.crt" > "$1.pem"
            }
            cart=URI:spiffe://example.org/ns/shop/sa/cart

            issue authority self 'Authority of Clients' "$authority"
            issue stranger self 'Other Authority' "$authority"
            issue first authority First "$authority"
            issue second first Second "$authority"
            issue third second Third "$authority"
            issue fourth third Fourth "$authority"
            leaf dns authority DNS:service.example
            leaf upperCase authority DNS:Service.Example
            leaf spiffe authority $cart
            leaf spiffeAndDNS authority DNS:service.example,$cart
            leaf twoSPIFFE authority $cart,URI:spiffe://example.org/ns/shop/sa/bill,DNS:service.example
            leaf spiffeAndURI authority $cart,URI:https://service.example/,DNS:service.example
            leaf upperCaseScheme authority URI:SPIFFE://example.org/ns/shop/sa/cart,DNS:service.example
            leaf otherURI authority URI:https://service.example/,DNS:service.example
            leaf many authority "$(seq -s , -f DNS:n%g.example 17)"
            leaf wildcard authority 'DNS:*.example'
            leaf wrongAuthority stranger DNS:service.example
            leaf deep third DNS:service.example
            cat third.crt second.crt first.crt >> deep.pem
            leaf tooDeep fourth DNS:service.example
            cat fourth.crt third.crt second.crt first.crt >> tooDeep.pem
            # other <name> <common name> <extensions>
            other() {
                issue "$1" authority "$2" "$3"
                cat "$1.crt" > "$1.pem"
            }
            other nulInName nul "$client
            2.5.29.17=DER:30:17:82:15:73:65:72:76:69:63:65:2e:65:78:61:6d:70:6c:65:00:2e:65:76:69:6c"
            other notASCII latin "$client
            2.5.29.17=DER:30:11:82:0f:73:65:72:76:69:63:e9:2e:65:78:61:6d:70:6c:65"
            other commonNameOnly service.example "$client"
            other serverPurpose server "basicConstraints=critical,CA:FALSE
            extendedKeyUsage=serverAuth
            subjectAltName=DNS:service.example"
            until=20200201000000Z
            leaf expired authority DNS:service.example
            echo done
            """#
}
