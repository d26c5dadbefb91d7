import Cryptography
import Testing

@Suite struct `SHA-256` {
    /// The examples of FIPS 180-4, and the empty message.
    @Test(arguments: [
        ("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        ("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (
            "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
        ),
        (
            String(repeating: "a", count: 1_000_000),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"
        ),
    ])
    func `gives the published digests`(message: String, digest: String) {
        #expect(Hex.encode(SHA256.digest(Array(message.utf8))) == digest)
        #expect(Hex.encode(SHA256.digest(Array(message.utf8).span)) == digest)
    }

    @Test func `is the same from many threads at once`() async {
        let expected = SHA256.digest([1, 2, 3])
        await withTaskGroup(of: [UInt8].self) { group in
            for _ in 0..<200 { group.addTask { SHA256.digest([1, 2, 3]) } }
            for await digest in group { #expect(digest == expected) }
        }
    }
}

@Suite struct `HKDF-SHA-256` {
    struct Vector: Sendable {
        let key: String
        let salt: String
        let info: String
        let output: String
    }

    /// RFC 5869 appendices A.1 to A.3.
    static let vectors = [
        Vector(
            key: String(repeating: "0b", count: 22), salt: "000102030405060708090a0b0c", info: "f0f1f2f3f4f5f6f7f8f9",
            output: "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"),
        Vector(
            key: Hex.encode((0x00...0x4F).map { UInt8($0) }), salt: Hex.encode((0x60...0xAF).map { UInt8($0) }),
            info: Hex.encode((0xB0...0xFF).map { UInt8($0) }),
            output: "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c"
                + "59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71"
                + "cc30c58179ec3e87c14c01d5c1f3434f1d87"),
        Vector(
            key: String(repeating: "0b", count: 22), salt: "", info: "",
            output: "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"),
    ]

    @Test(arguments: vectors)
    func `gives the published keys`(vector: Vector) throws {
        let key = SecretBytes(try #require(Hex.decode(vector.key)))
        let salt = try #require(Hex.decode(vector.salt))
        let info = try #require(Hex.decode(vector.info))
        let count = vector.output.count / 2
        let output = HKDF.sha256(key: key, salt: salt, info: info, count: count)
        #expect(Hex.encode(output.revealedBytes) == vector.output)
    }

    @Test(arguments: [1, 31, 32, 33, 64, 65, 8159, 8160])
    func `a shorter key is the beginning of a longer one`(count: Int) {
        let key = SecretBytes([1, 2, 3])
        let longest = HKDF.sha256(key: key, salt: [4], info: [5], count: 8160).revealedBytes
        let output = HKDF.sha256(key: key, salt: [4], info: [5], count: count).revealedBytes
        #expect(output == Array(longest.prefix(count)))
    }

    @Test func `any other key, salt or info gives another key`() {
        let key = HKDF.sha256(key: SecretBytes([1]), salt: [2], info: [3], count: 32)
        #expect(HKDF.sha256(key: SecretBytes([9]), salt: [2], info: [3], count: 32) != key)
        #expect(HKDF.sha256(key: SecretBytes([1]), salt: [9], info: [3], count: 32) != key)
        #expect(HKDF.sha256(key: SecretBytes([1]), salt: [2], info: [9], count: 32) != key)
    }
}
