import CommandLineClient
import Cryptography
import Testing

/// The expected symbols are those of the Python package qrcode 8, error correction L, byte mode, with the mask given.
@Suite struct `A QR code` {
    @Test func `is the symbol that another encoder makes`() throws {
        let code = try #require(QRCode(Array("token-broker".utf8), mask: 2))
        #expect(
            code.rows == [
                "#######..#..#.#######", "#.....#.#..#..#.....#", "#.###.#..#....#.###.#", "#.###.#.#..#..#.###.#",
                "#.###.#...###.#.###.#", "#.....#.###.#.#.....#", "#######.#.#.#.#######", "..........###........",
                "#####.####..##.#.#.#.", "..#.....##..#...##..#", "...#.###..##..#..#.#.", "###.#........#.####..",
                "...#.##.#.##..##...#.", "........#.#.#####..##", "#######.#...###..#.#.", "#.....#...#..#...##..",
                "#.###.#.###.#.#.#..##", "#.###.#.##.#..#####..", "#.###.#.#..#####.##..", "#.....#.######.####..",
                "#######.#####.#.#..#.",
            ])
    }

    /// Both sides of the boundaries between versions, with every mask.
    @Test(arguments: [
        (1, 0, 1, "1a04e7990fcce1a40fdba64e014b6a69d88c799572ce741bd2e2f1e568a4a76c"),
        (17, 1, 1, "410f6406864df19bdb0d4bb4e96adaeb243269f5fb3151aa327d57bd5186600e"),
        (18, 2, 2, "0383cf31c6649de9eaf59fd1f86829ebf42afac908c93333e7d54f3342994152"),
        (64, 3, 4, "83f9fc25e9ad6a481ddb4b6e4d73b35185f736472a62592e789b2e5aae3b13e5"),
        (134, 4, 6, "2c3364d1d8c352063af527422527299efe5ceffb7c69596c974a6e219858e351"),
        (154, 5, 7, "a432dd9f5b2e272b02081f92a603bdfd981156af72ed3341ec37ad8fa6c640df"),
        (155, 6, 8, "c4083eee0730258e20bafd668dfcb3cdc46eb180363c705684da17b923ff17f9"),
        (230, 7, 9, "f7c994856e1af581b1744222b84f4309a89483527df2384c2920c8f33e802084"),
        (231, 0, 10, "857732153b2f8aeaa66934fe339645e04f0734318c6a96e575579ceac05da3d7"),
        (271, 1, 10, "53f35538d8fd94660936d00008fed96f4a6881adc4f526ae58a6c1e1da04cbbe"),
        (272, 2, 11, "f0d6dd93848bfd2127729b0978f4222f96e09e4b7998bc35f4a7bf8806494e33"),
        (458, 3, 14, "633229cb51ff261f3b2a28f65de6f03f1b213a0cd9491f71673bf5e9bd27f90e"),
        (586, 4, 16, "0fb3c4b71537ce440077ed8ee24490e525a2e9c11fbbf105e39dc52d669160d4"),
        (718, 5, 18, "b94b99ff9fa2383b78dc3ef6b5c0a43493d856f15a4034fd78ae18dc73cc6242"),
        (858, 6, 20, "b58a76ef85609a830fdd1cb230d54bafa5224765aacde91925eec84fe3f2dbf7"),
    ])
    func `has the version that its bytes need`(count: Int, mask: Int, version: Int, digest: String) throws {
        let text = String(repeating: "https://broker.example/login/start/music/5mVtQz1XwS3nYb7KdR0aJg?", count: 20)
        let code = try #require(QRCode(Array(text.utf8.prefix(count)), mask: mask))
        #expect(code.size == 17 + 4 * version)
        #expect(Hex.encode(SHA256.digest(Array(code.rows.joined(separator: "\n").utf8))) == digest)
    }

    @Test func `is not made of more bytes than there is room for`() {
        #expect(QRCode(Array(repeating: 0x61, count: 858)) != nil)
        #expect(QRCode(Array(repeating: 0x61, count: 859)) == nil)
    }

    @Test func `has one of the eight masks where none is named`() throws {
        let bytes = Array("https://broker.example/login/start/music/5mVtQz1XwS3nYb7KdR0aJg".utf8)
        let masks = (0..<8).compactMap { QRCode(bytes, mask: $0)?.rows }
        #expect(masks.count == 8)
        #expect(Set(masks).count == 8)
        #expect(masks.contains(try #require(QRCode(bytes)).rows))
    }

    @Test func `is shown in half blocks with light modules around it`() throws {
        let code = try #require(QRCode(Array("token-broker".utf8), mask: 2))
        let lines = code.text(hasColours: false).split(separator: "\n")
        // 21 rows and four light ones, two in each line; the last line has the upper half only.
        #expect(lines.count == 13)
        #expect(lines.allSatisfy { $0.count == code.width })
        #expect(lines[0] == String(repeating: "█", count: 25)[...])
        #expect(lines[1].hasPrefix("██ ▄▄▄▄▄ █"))
        #expect(lines[12] == String(repeating: "▀", count: 25)[...])
        let coloured = code.text(hasColours: true).split(separator: "\n")
        #expect(coloured.allSatisfy { $0.hasPrefix("\u{1b}[38;5;231;48;5;16m") && $0.hasSuffix("\u{1b}[0m") })
    }
}
