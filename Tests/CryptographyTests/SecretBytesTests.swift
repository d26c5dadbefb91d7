import Cryptography
import Testing

@Suite struct `Secret bytes` {
    let secret = SecretBytes(utf8: "canary-49f1")

    @Test func `do not show in any printed form`() {
        struct Holder { let token: SecretBytes }
        var dumped = ""
        dump(Holder(token: secret), to: &dumped)
        dump(secret, to: &dumped)
        let forms = [
            "\(secret)", String(describing: secret), String(reflecting: secret), "\(Holder(token: secret))",
            String(reflecting: [secret]), "\(Optional(secret) as Any)", dumped,
        ]
        for form in forms {
            #expect(!form.contains("canary"))
            #expect(form.contains("<secret>"))
        }
        #expect(Mirror(reflecting: secret).children.isEmpty)
    }

    @Test func `are revealed on request`() {
        #expect(secret.revealedText == "canary-49f1")
        #expect(secret.revealedBytes == Array("canary-49f1".utf8))
        #expect(secret.withRevealed { $0.count } == 11)
        #expect(secret.withRevealed { $0[0] } == UInt8(ascii: "c"))
        #expect(SecretBytes([0xFF]).revealedText == "\u{FFFD}")
    }

    @Test func `pass on what the reader throws`() {
        #expect(throws: CryptographyError.invalidLength) {
            try secret.withRevealed { _ throws(CryptographyError) in throw CryptographyError.invalidLength }
        }
    }

    @Test(arguments: [("", "", ""), ("", "token", ""), ("a", "", "b"), ("before ", "token", " behind")])
    func `stand between others in one piece, of which they are a part`(before: String, text: String, behind: String) {
        let whole = SecretBytes(
            prefix: Array(before.utf8), secret: SecretBytes(utf8: text), suffix: Array(behind.utf8))
        #expect(whole.revealedText == before + text + behind)
        let part = whole.extracting(before.utf8.count..<before.utf8.count + text.utf8.count)
        #expect(part.revealedText == text)
        #expect(part == SecretBytes(utf8: text))
        #expect("\(part)" == "<secret>")
    }

    @Test func `are there as long as a part of them is`() {
        func part() -> SecretBytes {
            SecretBytes(prefix: [UInt8](repeating: 1, count: 4096), secret: secret, suffix: []).extracting(
                4096..<4096 + secret.count)
        }
        let parts = (0..<100).map { _ in part() }
        for part in parts { #expect(part == secret) }
    }

    @Test func `are equal by content`() {
        #expect(secret == SecretBytes(Array("canary-49f1".utf8)))
        #expect(SecretBytes([]) == SecretBytes(utf8: ""))
        #expect(SecretBytes([]).isEmpty)
        #expect(SecretBytes([]) != secret)
        let bytes = secret.revealedBytes
        for index in bytes.indices {
            var other = bytes
            other[index] ^= 0x80
            #expect(SecretBytes(other) != secret)
        }
        #expect(SecretBytes(Array(bytes.dropLast())) != secret)
        #expect(SecretBytes(bytes + [0]) != secret)
    }
}

@Suite struct `Constant-time comparison` {
    @Test(
        arguments: [
            ([], [], true), ([1], [1], true), ([1], [2], false), ([1], [], false), ([1, 2], [1], false),
            ([1, 2, 3], [1, 2, 3], true), ([1, 2, 3], [1, 2, 4], false), ([0, 2, 3], [1, 2, 3], false),
        ] as [([UInt8], [UInt8], Bool)])
    func `tells whether two values are the same`(left: [UInt8], right: [UInt8], same: Bool) {
        #expect(ConstantTime.equal(left, right) == same)
        #expect(ConstantTime.equal(right, left) == same)
    }
}

@Suite struct `Randomness` {
    // H028
    @Test func `has the length that was asked for and does not repeat`() throws {
        for count in [0, 1, 16, 32, 5000] {
            #expect(try SecureRandom.bytes(count).count == count)
            #expect(try SecureRandom.secret(count).count == count)
        }
        var seen: Set<[UInt8]> = []
        for _ in 0..<1000 {
            #expect(seen.insert(try SecureRandom.bytes(16)).inserted)
            #expect(seen.insert(try SecureRandom.secret(16).revealedBytes).inserted)
        }
    }

    @Test(arguments: [-1, Int.min, Int(Int32.max) + 1])
    func `an impossible length is refused`(count: Int) {
        #expect(throws: CryptographyError.invalidLength) { try SecureRandom.bytes(count) }
        #expect(throws: CryptographyError.invalidLength) { try SecureRandom.secret(count) }
    }
}
