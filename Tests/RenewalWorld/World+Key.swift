extension World {
    /// Puts replicas that are alike in a fixed order: what one of them does, any could do, so that worlds which differ in who
    /// is who are one.
    mutating func order(_ c: Context) {
        var order: (Int, Int, Int) = (0, 1, 2)
        if isLess(1, 0) { order = (1, 0, 2) }
        if c.count == 3 {
            if isLess(2, order.1) {
                order = isLess(2, order.0) ? (2, order.0, order.1) : (order.0, 2, order.1)
            }
        }
        if order == (0, 1, 2) { return }
        let (old, names) = (replicas, [names.0, names.1, names.2])
        (replicas[0], replicas[1], replicas[2]) = (old[order.0], old[order.1], old[order.2])
        self.names = (names[order.0], names[order.1], names[order.2])
        var places: (UInt8, UInt8, UInt8) = (0, 0, 0)
        func place(_ replica: Int, _ new: UInt8) {
            if replica == 0 { places.0 = new } else if replica == 1 { places.1 = new } else { places.2 = new }
        }
        place(order.0, 0)
        place(order.1, 1)
        place(order.2, 2)
        rename { holder in
            let replica = holder >> 4
            guard replica < 3 else { return holder }
            return (replica == 0 ? places.0 : replica == 1 ? places.1 : places.2) << 4 | holder & 15
        }
    }

    /// Gives each holder that is named anywhere another name.
    mutating func rename(_ change: (UInt8) -> UInt8) {
        row.holder = change(row.holder)
        behind.holder = change(behind.holder)
        for index in 0..<3 {
            if replicas[index].over != Holder.none { replicas[index].over = change(replicas[index].over) }
            if lateClaims[index].holder != Holder.none {
                lateClaims[index].holder = change(lateClaims[index].holder)
                lateClaims[index].over = change(lateClaims[index].over)
            }
        }
    }

    func isNamed(_ holder: UInt8) -> Bool {
        if row.holder == holder || behind.holder == holder { return true }
        for index in 0..<3 {
            if replicas[index].over == holder || lateClaims[index].holder == holder || lateClaims[index].over == holder
            {
                return true
            }
        }
        return false
    }

    private func isLess(_ first: Int, _ second: Int) -> Bool {
        let (a, b) = (rank(first), rank(second))
        if a.0 != b.0 { return a.0 < b.0 }
        if a.1 != b.1 { return a.1 < b.1 }
        if a.2 != b.2 { return a.2 < b.2 }
        return a.3 < b.3
    }

    /// What tells a replica from the others, without the names of others.
    private func rank(_ index: Int) -> (UInt64, UInt64, UInt64, UInt64) {
        let r = replicas[index]
        var named: UInt64 = 0
        if row.holder >> 4 == index { named = 1 + UInt64(row.holder & 15) }
        if behind.holder >> 4 == index { named |= (1 + UInt64(behind.holder & 15)) << 8 }
        for claim in 0..<3 where lateClaims[claim].holder >> 4 == index { named |= 1 << (16 + UInt64(claim)) }
        func word(
            _ a: UInt8, _ b: UInt8, _ c: UInt8, _ d: UInt8, _ e: UInt8, _ f: UInt8, _ g: UInt8, _ h: UInt8
        ) -> UInt64 {
            let low = UInt64(a) | UInt64(b) << 8 | UInt64(c) << 16 | UInt64(d) << 24
            return low | UInt64(e) << 32 | UInt64(f) << 40 | UInt64(g) << 48 | UInt64(h) << 56
        }
        func byte(_ token: Int8) -> UInt8 { UInt8(bitPattern: token) }
        return (
            word(
                UInt8(truncatingIfNeeded: r.attempt), UInt8(r.attempt >> 8), r.flags, r.blocked, r.returned, r.failed,
                r.number, r.lost),
            word(r.call, r.due, r.outcome, byte(r.lateGrant), r.kind.rawValue, r.version, r.flag, r.latest),
            word(
                r.duration, r.clock, r.asked, byte(r.grant), byte(r.journal), r.journalOver, r.known,
                byte(r.knownToken)),
            word(r.knownBefore, r.hold, r.served, byte(r.servedToken), r.calm, r.claimed, 0, 0) | named << 40 | UInt64(
                r.heeded) << 63
        )
    }

    /// Of the whole state.
    var hash: UInt64 {
        // What is no part of the state comes last.
        let size = MemoryLayout<World>.offset(of: \.names) ?? 0
        return unsafe withUnsafeBytes(of: self) { bytes in
            var (hash, offset) = (0x9E37_79B9_7F4A_7C15 as UInt64, 0)
            while offset + 8 <= size {
                hash = Self.mixed(hash, unsafe bytes.loadUnaligned(fromByteOffset: offset, as: UInt64.self))
                offset += 8
            }
            while offset < size {
                hash = Self.mixed(hash, UInt64(unsafe bytes[offset]))
                offset += 1
            }
            return Self.mixed(hash, 0x94D0_49BB_1331_11EB)
        }
    }

    private static func mixed(_ hash: UInt64, _ word: UInt64) -> UInt64 {
        let product = (hash ^ word).multipliedFullWidth(by: 0xA076_1D64_78BD_642F)
        return product.high ^ product.low &+ (hash &<< 5 | hash &>> 59)
    }
}
