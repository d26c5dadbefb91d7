import Cryptography
import Testing

@Suite struct `AES-256-GCM` {
    struct Vector: Sendable {
        var key = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"
        var nonce = "cafebabefacedbaddecaf888"
        var plaintext =
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
            + "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
        var associatedData = ""
        let sealed: String
    }

    /// The AES-256 cases 13 to 16 of "The Galois/Counter Mode of Operation", which NIST published with the proposal.
    static let vectors = [
        Vector(
            key: String(repeating: "00", count: 32), nonce: String(repeating: "00", count: 12), plaintext: "",
            sealed: "530f8afbc74536b9a963b4f1c4cb738b"),
        Vector(
            key: String(repeating: "00", count: 32), nonce: String(repeating: "00", count: 12),
            plaintext: String(repeating: "00", count: 16),
            sealed: "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"),
        Vector(
            plaintext: "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
                + "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255",
            sealed: "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
                + "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad"
                + "b094dac5d93471bdec1a502270e3cc6c"),
        Vector(
            associatedData: "feedfacedeadbeeffeedfacedeadbeefabaddad2",
            sealed: "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
                + "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
                + "76fc6ece0f4e1768cddf8853bb2d551b"),
    ]

    @Test(arguments: vectors)
    func `gives the published ciphertexts and tags`(vector: Vector) throws {
        let key = SecretBytes(try #require(Hex.decode(vector.key)))
        let nonce = try #require(Hex.decode(vector.nonce))
        let plaintext = try #require(Hex.decode(vector.plaintext))
        let associatedData = try #require(Hex.decode(vector.associatedData))
        let sealed = try AES256GCM.seal(plaintext, key: key, nonce: nonce, associatedData: associatedData)
        #expect(Hex.encode(sealed) == vector.sealed)
        let secret = SecretBytes(plaintext)
        #expect(try AES256GCM.seal(secret, key: key, nonce: nonce, associatedData: associatedData) == sealed)
        #expect(try AES256GCM.open(sealed, key: key, nonce: nonce, associatedData: associatedData) == secret)
    }

    let key = SecretBytes([UInt8](repeating: 7, count: 32))
    let nonce = [UInt8](repeating: 9, count: 12)

    // H049
    @Test func `any flipped bit shows`() throws {
        let associatedData: [UInt8] = [4, 5, 6]
        let sealed = try AES256GCM.seal([1, 2, 3], key: key, nonce: nonce, associatedData: associatedData)
        func isRefused(
            _ sealed: [UInt8], key: [UInt8]? = nil, nonce: [UInt8]? = nil, associatedData: [UInt8] = [4, 5, 6]
        ) -> Bool {
            do throws(CryptographyError) {
                _ = try AES256GCM.open(
                    sealed, key: key.map { SecretBytes($0) } ?? self.key, nonce: nonce ?? self.nonce,
                    associatedData: associatedData)
                return false
            } catch {
                return error == .authenticationFailed
            }
        }
        #expect(!isRefused(sealed))
        for bit in 0..<8 {
            for index in sealed.indices { #expect(isRefused(flipping(sealed, index, bit))) }
            for index in 0..<32 { #expect(isRefused(sealed, key: flipping(key.revealedBytes, index, bit))) }
            for index in nonce.indices { #expect(isRefused(sealed, nonce: flipping(nonce, index, bit))) }
            for index in associatedData.indices {
                #expect(isRefused(sealed, associatedData: flipping(associatedData, index, bit)))
            }
        }
        for count in sealed.indices { #expect(isRefused(Array(sealed.prefix(count)))) }
        #expect(isRefused(sealed + [0]))
        #expect(isRefused(sealed, associatedData: []))
        #expect(isRefused(sealed, associatedData: [4, 5]))
        #expect(isRefused(sealed, associatedData: [4, 5, 6, 0]))
    }

    private func flipping(_ bytes: [UInt8], _ index: Int, _ bit: Int) -> [UInt8] {
        var copy = bytes
        copy[index] ^= 1 << UInt8(bit)
        return copy
    }

    @Test(arguments: [0, 1, 15, 16, 17, 4095, 4096, 4097, 1 << 20])
    func `opens what it sealed, of any length`(count: Int) throws {
        let content = (0..<count).map { UInt8(truncatingIfNeeded: $0) }
        let sealed = try AES256GCM.seal(content, key: key, nonce: nonce, associatedData: [])
        #expect(sealed.count == count + 16)
        #expect(try AES256GCM.open(sealed, key: key, nonce: nonce, associatedData: []).revealedBytes == content)
    }

    @Test(arguments: [0, 16, 24, 31, 33])
    func `a key of another length is refused`(count: Int) {
        let key = SecretBytes([UInt8](repeating: 7, count: count))
        #expect(throws: CryptographyError.invalidLength) {
            try AES256GCM.seal([1], key: key, nonce: nonce, associatedData: [])
        }
        #expect(throws: CryptographyError.invalidLength) {
            try AES256GCM.open([UInt8](repeating: 0, count: 17), key: key, nonce: nonce, associatedData: [])
        }
    }

    @Test(arguments: [0, 11, 13, 16])
    func `a nonce of another length is refused`(count: Int) {
        let nonce = [UInt8](repeating: 9, count: count)
        #expect(throws: CryptographyError.invalidLength) {
            try AES256GCM.seal([1], key: key, nonce: nonce, associatedData: [])
        }
    }
}
