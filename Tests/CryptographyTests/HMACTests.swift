import Cryptography
import Testing

@Suite struct `HMAC with SHA-256` {
    /// The cases 1, 2 and 6 of RFC 4231, and keys about as long as a block of SHA-256.
    @Test(
        arguments: [
            (
                [UInt8](repeating: 0x0b, count: 20), "Hi There",
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
            ),
            (
                Array("Jefe".utf8), "what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
            ),
            (
                [UInt8](repeating: 0xaa, count: 131), "Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
            ),
            ([], "", "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad"),
            (
                [UInt8](repeating: 0x6b, count: 63), "",
                "a73e4ae46b2a9f2402fff056e156c0a25551e3db5097f9367522239bfbc2d02e"
            ),
            (
                [UInt8](repeating: 0x6b, count: 64), "",
                "83026a325aaee70e36cfe607536aa1054104ad1077c36134810d4ccded1ccd3b"
            ),
            (
                [UInt8](repeating: 0x6b, count: 65), "",
                "41f1c4cc3107cd5b8d92460f61032902bfdb06484eef17e861b83a5012d3b7f3"
            ),
        ] as [([UInt8], String, String)])
    func `gives the published codes`(key: [UInt8], message: String, code: String) {
        #expect(Hex.encode(HMAC.sha256(key: SecretBytes(key), Array(message.utf8))) == code)
    }
}
