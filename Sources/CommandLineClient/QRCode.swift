/// A QR code of bytes (ISO/IEC 18004): byte mode, error correction of level L, up to version 20. What a terminal shows of an
/// address, so that a phone can open it.
package struct QRCode: Sendable {
    /// Modules of a side: 21 to 97.
    package let size: Int
    private var dark: [Bool]
    private var isFunction: [Bool]

    /// Error correction codewords of a block, and blocks, for each version of level L.
    private static let codewords = [7, 10, 15, 20, 26, 18, 20, 24, 30, 18, 20, 24, 26, 30, 22, 24, 28, 30, 28, 28]
    private static let blocks = [1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4, 4, 6, 6, 6, 6, 7, 8]

    /// - Parameters:
    ///   - bytes: at most 858.
    ///   - mask: 0 to 7; nil for the one that is read best.
    /// - Returns: nil for more bytes than a code of version 20 has room for.
    package init?(_ bytes: [UInt8], mask: Int? = nil) {
        guard let version = (1...Self.blocks.count).first(where: { Self.fits(bytes.count, $0) }) else { return nil }
        self.init(version)
        drawFunctionPatterns(version)
        place(Self.interleaved(Self.data(bytes, version), version))
        let best = mask ?? (0..<8).min { masked($0).penalty < masked($1).penalty } ?? 0
        self = masked(best)
    }

    /// A code with light modules only.
    private init(_ version: Int) {
        size = 17 + 4 * version
        dark = Array(repeating: false, count: size * size)
        isFunction = dark
    }

    /// Whether a module is dark. Those outside of the code are light.
    package subscript(row: Int, column: Int) -> Bool {
        (0..<size).contains(row) && (0..<size).contains(column) && dark[row * size + column]
    }

    // MARK: Codewords

    /// Modules that hold data, in bits.
    private static func rawBits(_ version: Int) -> Int {
        var count = (16 * version + 128) * version + 64
        if version >= 2 {
            let alignments = version / 7 + 2
            count -= (25 * alignments - 10) * alignments - 55
            if version >= 7 { count -= 36 }
        }
        return count
    }

    private static func dataCodewords(_ version: Int) -> Int {
        rawBits(version) / 8 - codewords[version - 1] * blocks[version - 1]
    }

    private static func fits(_ count: Int, _ version: Int) -> Bool {
        4 + (version < 10 ? 8 : 16) + 8 * count <= 8 * dataCodewords(version)
    }

    /// The bytes with their mode and their number in front, and filled up.
    private static func data(_ bytes: [UInt8], _ version: Int) -> [UInt8] {
        var bits: [Bool] = []
        func append(_ value: Int, _ length: Int) {
            for bit in (0..<length).reversed() { bits.append(value >> bit & 1 == 1) }
        }
        append(0b0100, 4)
        append(bytes.count, version < 10 ? 8 : 16)
        for byte in bytes { append(Int(byte), 8) }
        let capacity = 8 * dataCodewords(version)
        append(0, min(4, capacity - bits.count))
        append(0, (8 - bits.count % 8) % 8)
        var padding = 0xec
        while bits.count < capacity {
            append(padding, 8)
            padding ^= 0xec ^ 0x11
        }
        return stride(from: 0, to: bits.count, by: 8).map { start in
            bits[start..<start + 8].reduce(0) { $0 << 1 | ($1 ? 1 : 0) }
        }
    }

    /// The data in blocks with their error correction, codeword by codeword of all blocks. Of the blocks, the first may be one
    /// codeword shorter.
    private static func interleaved(_ data: [UInt8], _ version: Int) -> [UInt8] {
        let (count, correction) = (blocks[version - 1], codewords[version - 1])
        let total = rawBits(version) / 8
        let short = total / count - correction
        let shortBlocks = count - total % count
        let divisor = ReedSolomon.divisor(correction)
        var parts: [(data: ArraySlice<UInt8>, correction: [UInt8])] = []
        var start = 0
        for block in 0..<count {
            let end = start + short + (block < shortBlocks ? 0 : 1)
            parts.append((data[start..<end], ReedSolomon.remainder(data[start..<end], divisor)))
            start = end
        }
        var result: [UInt8] = []
        for index in 0...short {
            for part in parts where index < part.data.count { result.append(part.data[part.data.startIndex + index]) }
        }
        for index in 0..<correction { for part in parts { result.append(part.correction[index]) } }
        return result
    }

    // MARK: Modules

    private mutating func set(_ row: Int, _ column: Int, _ isDark: Bool) {
        guard (0..<size).contains(row), (0..<size).contains(column) else { return }
        dark[row * size + column] = isDark
        isFunction[row * size + column] = true
    }

    private mutating func drawFunctionPatterns(_ version: Int) {
        for index in 0..<size {
            set(6, index, index % 2 == 0)
            set(index, 6, index % 2 == 0)
        }
        for (row, column) in [(3, 3), (3, size - 4), (size - 4, 3)] { drawFinder(row, column) }
        let places = Self.alignments(version, size)
        for row in places {
            for column in places {
                // Three corners have a finder pattern.
                if (row, column) == (6, 6) || (row, column) == (6, size - 7) || (row, column) == (size - 7, 6) {
                    continue
                }
                for down in -2...2 {
                    for right in -2...2 { set(row + down, column + right, max(abs(down), abs(right)) != 1) }
                }
            }
        }
        drawFormat(mask: 0)
        if version >= 7 { drawVersion(version) }
    }

    private mutating func drawFinder(_ row: Int, _ column: Int) {
        for down in -4...4 {
            for right in -4...4 {
                let distance = max(abs(down), abs(right))
                set(row + down, column + right, distance != 2 && distance != 4)
            }
        }
    }

    private static func alignments(_ version: Int, _ size: Int) -> [Int] {
        if version == 1 { return [] }
        let count = version / 7 + 2
        let step = (version * 8 + count * 3 + 5) / (count * 4 - 4) * 2
        return [6] + (0..<count - 1).reversed().map { size - 7 - $0 * step }
    }

    /// Level and mask, twice, with the module that is always dark.
    private mutating func drawFormat(mask: Int) {
        // Level L is 01.
        let data = 0b01 << 3 | mask
        var remainder = data
        for _ in 0..<10 { remainder = remainder << 1 ^ (remainder >> 9) * 0x537 }
        let bits = (data << 10 | remainder) ^ 0x5412
        func bit(_ index: Int) -> Bool { bits >> index & 1 == 1 }
        for index in 0...5 { set(index, 8, bit(index)) }
        set(7, 8, bit(6))
        set(8, 8, bit(7))
        set(8, 7, bit(8))
        for index in 9..<15 { set(8, 14 - index, bit(index)) }
        for index in 0..<8 { set(8, size - 1 - index, bit(index)) }
        for index in 8..<15 { set(size - 15 + index, 8, bit(index)) }
        set(size - 8, 8, true)
    }

    private mutating func drawVersion(_ version: Int) {
        var remainder = version
        for _ in 0..<12 { remainder = remainder << 1 ^ (remainder >> 11) * 0x1f25 }
        let bits = version << 12 | remainder
        for index in 0..<18 {
            let (far, near) = (size - 11 + index % 3, index / 3)
            set(near, far, bits >> index & 1 == 1)
            set(far, near, bits >> index & 1 == 1)
        }
    }

    /// Fills the other modules by pairs of columns from the right, upwards and downwards in turn.
    private mutating func place(_ codewords: [UInt8]) {
        var bit = 0
        var upwards = true
        for pair in stride(from: size - 1, through: 1, by: -2) {
            // The column of the timing pattern is left out.
            let right = pair <= 6 ? pair - 1 : pair
            for step in 0..<size {
                let row = upwards ? size - 1 - step : step
                for column in [right, right - 1] where !isFunction[row * size + column] {
                    guard bit < codewords.count * 8 else { continue }
                    dark[row * size + column] = codewords[bit / 8] >> UInt8(7 - bit % 8) & 1 == 1
                    bit += 1
                }
            }
            upwards.toggle()
        }
    }

    private func masked(_ mask: Int) -> QRCode {
        var code = self
        for row in 0..<size {
            for column in 0..<size where !isFunction[row * size + column] && Self.inverts(mask, row, column) {
                code.dark[row * size + column].toggle()
            }
        }
        code.drawFormat(mask: mask)
        return code
    }

    private static func inverts(_ mask: Int, _ row: Int, _ column: Int) -> Bool {
        switch mask {
        case 0: (row + column) % 2 == 0
        case 1: row % 2 == 0
        case 2: column % 3 == 0
        case 3: (row + column) % 3 == 0
        case 4: (row / 2 + column / 3) % 2 == 0
        case 5: row * column % 2 + row * column % 3 == 0
        case 6: (row * column % 2 + row * column % 3) % 2 == 0
        default: ((row + column) % 2 + row * column % 3) % 2 == 0
        }
    }
}

// MARK: Choice of the mask

extension QRCode {
    /// How hard the code is to read, by the four rules of the standard: runs, squares, what looks like a finder pattern, and the
    /// share of dark modules.
    private var penalty: Int {
        var penalty = 0
        for line in 0..<size {
            penalty += Self.linePenalty((0..<size).map { self[line, $0] })
            penalty += Self.linePenalty((0..<size).map { self[$0, line] })
        }
        for row in 0..<size - 1 {
            for column in 0..<size - 1 {
                let first = self[row, column]
                if first == self[row, column + 1], first == self[row + 1, column], first == self[row + 1, column + 1] {
                    penalty += 3
                }
            }
        }
        let percent = dark.count { $0 } * 100 / dark.count
        return penalty + abs(percent - 50) / 5 * 10
    }

    private static func linePenalty(_ line: [Bool]) -> Int {
        var (penalty, run) = (0, 0)
        for index in line.indices {
            run = index > 0 && line[index] == line[index - 1] ? run + 1 : 1
            if run == 5 { penalty += 3 } else if run > 5 { penalty += 1 }
        }
        let finder = [true, false, true, true, true, false, true]
        for start in 0...line.count - 7 where Array(line[start..<start + 7]) == finder {
            let before = line[max(0, start - 4)..<start]
            let behind = line[start + 7..<min(line.count, start + 11)]
            if !before.contains(true) || !behind.contains(true) { penalty += 40 }
        }
        return penalty
    }
}

/// Error correction over the field of 256 elements with the polynomial 0x11d.
private enum ReedSolomon {
    /// The coefficients of the generator polynomial below the highest one.
    static func divisor(_ degree: Int) -> [UInt8] {
        var result = Array(repeating: UInt8(0), count: degree)
        result[degree - 1] = 1
        var root: UInt8 = 1
        for _ in 0..<degree {
            for index in 0..<degree {
                result[index] = multiply(result[index], root) ^ (index + 1 < degree ? result[index + 1] : 0)
            }
            root = multiply(root, 2)
        }
        return result
    }

    static func remainder(_ data: ArraySlice<UInt8>, _ divisor: [UInt8]) -> [UInt8] {
        var result = Array(repeating: UInt8(0), count: divisor.count)
        for byte in data {
            let factor = byte ^ result.removeFirst()
            result.append(0)
            for index in divisor.indices { result[index] ^= multiply(divisor[index], factor) }
        }
        return result
    }

    private static func multiply(_ left: UInt8, _ right: UInt8) -> UInt8 {
        var product = 0
        for bit in (0..<8).reversed() {
            product = product << 1 ^ (product >> 7) * 0x11d
            product ^= Int(right >> UInt8(bit) & 1) * Int(left)
        }
        return UInt8(product)
    }
}

// MARK: On a terminal

extension QRCode {
    /// Columns that `text` takes: the code and two light modules around it.
    package var width: Int { size + 4 }

    /// Lines of half blocks, two rows of modules in each, with a line break behind each.
    /// - Parameter hasColours: whether each line sets white on black, so that the code is right whatever the terminal's colours
    ///   are. Without them it is right on a dark background.
    package func text(hasColours: Bool) -> String {
        var text = ""
        for row in stride(from: -2, to: size + 2, by: 2) {
            if hasColours { text += "\u{1b}[38;5;231;48;5;16m" }
            for column in -2..<size + 2 {
                let below = row + 1 < size + 2 && !self[row + 1, column]
                switch (!self[row, column], below) {
                case (true, true): text += "█"
                case (true, false): text += "▀"
                case (false, true): text += "▄"
                case (false, false): text += " "
                }
            }
            text += hasColours ? "\u{1b}[0m\n" : "\n"
        }
        return text
    }

    /// The modules, a line for each row: `#` for a dark one.
    package var rows: [String] {
        (0..<size).map { row in String((0..<size).map { self[row, $0] ? "#" as Character : "." }) }
    }
}
