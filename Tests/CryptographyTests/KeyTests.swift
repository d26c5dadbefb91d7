import Cryptography
import Testing

@Suite struct `A key for signatures` {
    private static let message = Array("message".utf8)
    private static let schemes = SignatureScheme.allCases

    private static let p256 = make(.elliptic(.p256))
    private static let p384 = make(.elliptic(.p384))
    private static let rsa = make(.rsa(bits: 2048))
    private static let ed25519 = make(.ed25519)

    private static func make(_ kind: PrivateKey.Kind) -> PrivateKey {
        guard let key = try? PrivateKey.generate(kind) else { fatalError("no key was made") }
        return key
    }

    private func key(for scheme: SignatureScheme) -> PrivateKey {
        switch scheme {
        case .ecdsaP256: Self.p256
        case .ecdsaP384: Self.p384
        case .rsaPKCS1, .rsaPSS: Self.rsa
        case .ed25519: Self.ed25519
        }
    }

    @Test(arguments: schemes)
    func `verifies what its private part signs, and nothing else`(scheme: SignatureScheme) throws {
        let key = key(for: scheme)
        for message in [[], Self.message, [UInt8](repeating: 1, count: 100_000)] {
            let signature = try key.signature(of: message, by: scheme)
            #expect(signature.count == scheme.signatureCount(with: key.publicKey))
            #expect(key.publicKey.verifies(signature, of: message, by: scheme))
            #expect(!key.publicKey.verifies(signature, of: message + [0], by: scheme))
            #expect(!key.publicKey.verifies(signature + [0], of: message, by: scheme))
            #expect(!key.publicKey.verifies([0] + signature, of: message, by: scheme))
            #expect(!key.publicKey.verifies(Array(signature.dropLast()), of: message, by: scheme))
            #expect(!key.publicKey.verifies([], of: message, by: scheme))
        }
    }

    @Test(arguments: schemes)
    func `is read again from its SubjectPublicKeyInfo, and from nothing else`(scheme: SignatureScheme) throws {
        let key = key(for: scheme).publicKey
        let information = key.subjectPublicKeyInfo
        #expect(try PublicKey(subjectPublicKeyInfo: information) == key)
        let others: [[UInt8]] = [
            [], information + [0], Array(information.dropLast()), Array(information.dropFirst()),
            [UInt8](repeating: 0x30, count: 1 << 20),
        ]
        for other in others {
            #expect(throws: KeyError.malformed) { try PublicKey(subjectPublicKeyInfo: other) }
        }
    }

    @Test func `a signature of ECDSA counts in both of its forms`() throws {
        let (key, other) = (Self.p256, Self.p384)
        let signature = try key.signature(of: Self.message, by: .ecdsaP256)
        func integer(_ number: ArraySlice<UInt8>) -> [UInt8] {
            let bytes = [0] + number.drop { $0 == 0 }
            let minimal = bytes.count > 1 && bytes[1] < 0x80 ? Array(bytes.dropFirst()) : bytes
            return [0x02, UInt8(minimal.count)] + minimal
        }
        let numbers = integer(signature.prefix(32)) + integer(signature.suffix(32))
        let encoded = [0x30, UInt8(numbers.count)] + numbers
        for form in [signature, encoded] {
            #expect(key.publicKey.fixedLength(form, of: Self.message, by: .ecdsaP256) == signature)
            #expect(key.publicKey.fixedLength(form, of: [1], by: .ecdsaP256) == nil)
            #expect(other.publicKey.fixedLength(form, of: Self.message, by: .ecdsaP384) == nil)
        }
        for wrong in [[], Array(encoded.dropLast()), [UInt8](repeating: 0xff, count: 72)] {
            #expect(key.publicKey.fixedLength(wrong, of: Self.message, by: .ecdsaP256) == nil)
        }
    }

    @Test(arguments: schemes)
    func `verifies no signature with a flipped bit`(scheme: SignatureScheme) throws {
        let key = key(for: scheme)
        let signature = try key.signature(of: Self.message, by: scheme)
        for index in signature.indices {
            var changed = signature
            changed[index] ^= 1 << UInt8(index % 8)
            #expect(!key.publicKey.verifies(changed, of: Self.message, by: scheme))
        }
    }

    @Test(arguments: schemes, schemes)
    func `signs and verifies by the schemes of its kind only`(own: SignatureScheme, scheme: SignatureScheme) throws {
        let key = key(for: own)
        let signature = try key.signature(of: Self.message, by: own)
        #expect(key.publicKey.verifies(signature, of: Self.message, by: scheme) == (own == scheme))
        if scheme.isFor(key.publicKey) {
            #expect(throws: Never.self) { try key.signature(of: Self.message, by: scheme) }
        } else {
            #expect(throws: KeyError.unsupported) { try key.signature(of: Self.message, by: scheme) }
        }
    }

    @Test(arguments: schemes)
    func `is the same after a way through PEM`(scheme: SignatureScheme) throws {
        let key = key(for: scheme)
        let pem = try key.pem()
        #expect(pem.revealedText.hasPrefix("-----BEGIN PRIVATE KEY-----\n"))
        let read = try PrivateKey(pem: pem)
        #expect(read.publicKey == key.publicKey)
        #expect(key.publicKey.verifies(try read.signature(of: Self.message, by: scheme), of: Self.message, by: scheme))
        #expect(try PublicKey(read.publicKey.material) == key.publicKey)
    }

    @Test func `shows nothing of its private part`() {
        struct Holder { let key: PrivateKey }
        var dumped = ""
        dump(Holder(key: Self.p256), to: &dumped)
        for form in ["\(Self.p256)", String(reflecting: Self.p256), "\(Holder(key: Self.p256))", dumped] {
            #expect(form.contains("<private key>"))
        }
        #expect(Mirror(reflecting: Self.p256).children.isEmpty)
    }

    @Test(arguments: SamplePEM.all.map(\.name))
    func `is read from the forms of OpenSSL, and not with a passphrase or of another kind`(name: String) throws {
        let sample = try #require(SamplePEM.all.first { $0.name == name })
        do throws(KeyError) {
            let key = try PrivateKey(pem: SecretBytes(utf8: sample.text + "\n"))
            #expect(sample.error == nil)
            // Which form it came in does not show any more.
            let again = try PrivateKey(pem: try key.pem())
            #expect(again.publicKey == key.publicKey)
        } catch {
            #expect(error == sample.error)
        }
    }

    @Test func `is not read from a public key or a certificate`() {
        for name in ["PUBLIC KEY", "CERTIFICATE"] {
            let text = "-----BEGIN \(name)-----\nMIIB\n-----END \(name)-----\n"
            #expect(throws: KeyError.malformed) { try PrivateKey(pem: SecretBytes(utf8: text)) }
        }
    }

    @Test(arguments: [0, 1, PrivateKey.longestPEM, PrivateKey.longestPEM + 1])
    func `is no text without one, of any length`(count: Int) {
        #expect(throws: KeyError.malformed) { try PrivateKey(pem: SecretBytes([UInt8](repeating: 0x41, count: count))) }
    }

    @Test(arguments: [(0, true), (1, false)])
    func `is read from 16 KiB of text`(beyond: Int, isRead: Bool) throws {
        let pem = try Self.p256.pem().revealedBytes
        let text = [UInt8](repeating: 0x0a, count: PrivateKey.longestPEM + beyond - pem.count) + pem
        #expect(((try? PrivateKey(pem: SecretBytes(text))) != nil) == isRead)
    }

    @Test func `is not made with fewer or more bits than are read`() {
        for bits in [0, 1024, 2047, 4097, 16_384] {
            #expect(throws: KeyError.rsaSize(bits: bits)) { try PrivateKey.generate(.rsa(bits: bits)) }
        }
    }

    @Test func `may be used by many threads at once`() async throws {
        await withTaskGroup(of: Bool.self) { group in
            for number in 0..<200 {
                group.addTask {
                    let message = Array("\(number)".utf8)
                    guard let signature = try? Self.p256.signature(of: message, by: .ecdsaP256) else { return false }
                    return Self.p256.publicKey.verifies(signature, of: message, by: .ecdsaP256)
                }
            }
            for await isVerified in group { #expect(isVerified) }
        }
    }
}

/// The examples of FIPS 180-4, by NIST.
@Suite struct `SHA-384 and SHA-512` {
    @Test func `give the published digests`() {
        #expect(
            Hex.encode(HashFunction.sha384.digest(Array("abc".utf8)))
                == "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed"
                + "8086072ba1e7cc2358baeca134c825a7")
        #expect(
            Hex.encode(HashFunction.sha512.digest(Array("abc".utf8)))
                == "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
                + "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f")
        #expect(HashFunction.sha256.digest([1, 2]) == SHA256.digest([1, 2]))
    }

    @Test(arguments: [HashFunction.sha256, .sha384, .sha512])
    func `have the length that they say`(function: HashFunction) {
        #expect(function.digest([]).count == function.digestCount)
    }
}
