import Cryptography
import Testing

/// The examples of RFC 4648 §10, and for each alphabet a value with its last two characters.
@Suite struct `Text encodings` {
    static let plain = [
        ("", "", ""), ("f", "Zg==", "66"), ("fo", "Zm8=", "666f"), ("foo", "Zm9v", "666f6f"),
        ("foob", "Zm9vYg==", "666f6f62"), ("fooba", "Zm9vYmE=", "666f6f6261"), ("foobar", "Zm9vYmFy", "666f6f626172"),
    ]

    @Test(arguments: plain)
    func `give the published texts`(text: String, base64: String, hex: String) {
        let bytes = Array(text.utf8)
        #expect(Base64.encode(bytes) == base64)
        #expect(Base64.decode(base64) == bytes)
        let unpadded = base64.filter { $0 != "=" }
        #expect(Base64URL.encode(bytes) == unpadded)
        #expect(Base64URL.decode(unpadded) == bytes)
        #expect(Hex.encode(bytes) == hex)
        #expect(Hex.decode(hex) == bytes)
        #expect(Hex.decode(hex.uppercased()) == bytes)
    }

    @Test func `differ in the last two characters`() {
        #expect(Base64.encode([0xFB, 0xFF]) == "+/8=")
        #expect(Base64URL.encode([0xFB, 0xFF]) == "-_8")
        #expect(Base64.decode("-_8=") == nil)
        #expect(Base64URL.decode("+/8") == nil)
        #expect(Base64URL.decodeLoosely("+/8") == [0xFB, 0xFF])
    }

    @Test func `every byte value at every length comes back`() {
        for count in 0..<70 {
            for seed in [0, 3, 91, 250] {
                let bytes = (0..<count).map { UInt8(truncatingIfNeeded: $0 &* 37 &+ seed) }
                #expect(Base64.decode(Base64.encode(bytes)) == bytes)
                #expect(Base64URL.decode(Base64URL.encode(bytes)) == bytes)
                #expect(Hex.decode(Hex.encode(bytes)) == bytes)
            }
        }
    }

    @Test(arguments: [
        "=", "==", "===", "====", "A===", "Zg", "Zg=", "Zg===", "Zm8", "Zm8==", "Zm9v=", "Zm9v====", "Z", "Zm9vY",
        "Zg==Zg==", "Z=g=", "=Zg=", "Zg= =", " Zg==", "Zg== ", "Zg==\n", "Zm\n9v", "Zh==", "Zm9=", "Zm9v\u{0}", "Zm9é",
        "Zm9\u{7F}", "Zm9*", "AA-_",
    ])
    func `base 64 has one spelling for a value`(text: String) {
        #expect(Base64.decode(text) == nil)
    }

    @Test(arguments: ["Z", "Zg==", "Zg=", "Zh", "Zm9", "Zm8=", "Zm9vY", "Zm 9v", "Zm9v\n", "Zm+v", "Zm/v", "Zm9é", "é"])
    func `base 64 for URLs has one spelling for a value`(text: String) {
        #expect(Base64URL.decode(text) == nil)
    }

    @Test(
        arguments: [
            ("Zg", "f"), ("Zg=", "f"), ("Zg==", "f"), ("Zh", "f"), ("Zv==", "f"), ("Zm8", "fo"), ("Zm8=", "fo"),
            ("Zm9=", "fo"), ("Zm9v", "foo"), ("Zm9v=", "foo"), ("", ""), ("Z", nil), ("Z===", nil), ("Zg===", nil),
            ("Zm9vY", nil), ("Zm 9v", nil), ("Zm9v\n", nil), (" Zg", nil), ("Zg= =", nil), ("Z=g=", nil), ("Zm9é", nil),
            ("Zm9*", nil), ("Zm9v\u{0}", nil), ("*", nil), ("é", nil),
        ] as [(String, String?)])
    func `base 64 for URLs can be read where it is padded, or has leftover bits`(text: String, value: String?) {
        #expect(Base64URL.decodeLoosely(text) == value.map { Array($0.utf8) })
    }

    @Test(arguments: ["6", "666", "6g", "g6", "0x66", "66 ", " 66", "6 6", "66\n", "/0", ":0", "@0", "G0", "`0", "é"])
    func `hexadecimal is pairs of digits`(text: String) {
        #expect(Hex.decode(text) == nil)
    }
}
